"""Candidates for the last word of a command line, found by walking the table of commands.

In: words. Out: candidates, and whether file names fit as well. Only the command on the line is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete

from dra_driver.base.flags import FLAGS, VENDORS
from dra_driver.kube.paths import WORKLOADS
from dra_driver.tools.options import default_kubeconfig

# Names for completion: of shipped profiles, and of objects in a cluster.

_SECONDS = 2.0  # a person who has pressed the Tab key is waiting
_PAGE = "250"


def profiles() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    from dra_driver.hardware.simulated.profile import profile_names

    return profile_names()


def node_gpus() -> Sequence[str]:
    """Return the names of the GPUs that this node's agent has seen; none if anything fails."""
    from dra_driver.base.flags import FLAGS, resolve
    from dra_driver.base.names import gpu_name
    from dra_driver.node.health.faults import read_gpus
    from dra_driver.node.health.stored_health import GPUS, HealthStore

    with suppress(Exception):
        values = resolve({}, os.environ, FLAGS)
        folder = Path(values["kubelet_plugins_directory_path"], values["driver_name"])
        return sorted(gpu_name(gpu.pci_address) for gpu in read_gpus(HealthStore(folder).read().get(GPUS)))
    return ()


def names(kind: str, kubeconfig: str | None, namespace: str | None = None, context: str = "") -> Sequence[str]:
    """Return the names of nodes, namespaces, devices, claims, pods or workloads in a cluster; none if anything fails.

    `kind` is in the singular (`claim`). Namespaced objects are those of `namespace` or, if it is not set, of the
    context's namespace.
    """
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # the command itself reports what is wrong when it is run
            found.extend(_read(kind, kubeconfig, namespace, context))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return () if asking.is_alive() else sorted(set(found))


def _read(kind: str, kubeconfig: str | None, namespace: str | None, context: str) -> Sequence[str]:
    """Read one page of a kind. Raises: DriverError."""
    from dra_driver.kube import paths
    from dra_driver.kube.api import KubeApi
    from dra_driver.kube.credentials import load_credentials
    from dra_driver.kube.kubeconfig import read_namespace

    home = namespace or (read_namespace(kubeconfig, context) if kubeconfig else "default")
    kinds = {"node": paths.NODES, "namespace": paths.NAMESPACES, "device": paths.SLICES}
    kinds |= {
        name: paths.within(path, home)
        for name, path in (("claim", paths.CLAIMS), ("pod", paths.PODS), *paths.WORKLOADS.items())
    }
    path = kinds.get(kind)
    if path is None:
        return ()
    api = KubeApi(load_credentials(kubeconfig, context=context))
    try:
        answer: dict[str, Any] = api.request("GET", path, query={"limit": _PAGE}, timeout_s=_SECONDS)
    finally:
        api.close()
    items = answer.get("items") or []
    if kind == "device":
        return [device["name"] for item in items for device in item["spec"].get("devices") or ()]
    return [item["metadata"]["name"] for item in items]


Source = Callable[[click.Context, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Words that can complete the line, each with a short help text, and whether a file name fits as well."""

    words: tuple[tuple[str, str], ...]
    has_files: bool = False


def _profiles(_ctx: click.Context, _typed: str) -> Sequence[str]:
    return profiles()


def _hardware(_ctx: click.Context, _typed: str) -> Sequence[str]:
    return ("auto", *(vendor.name for vendor in VENDORS), *(f"simulated:{name}" for name in profiles()))


def _of_cluster(kind: str) -> Source:
    return lambda ctx, _typed: _names(ctx, kind)


def _names(ctx: click.Context, kind: str) -> Sequence[str]:
    """Return the names of a kind in the cluster and namespace that the options before the cursor select."""
    given = ctx.params
    return names(kind, kubeconfig_of(ctx), given.get("namespace"), given.get("context") or "")


# By the name of an option, which has the same meaning in all commands.
_BY_OPTION: Mapping[str, Source] = {
    "--fleet": _profiles,
    "--add-nodes": _profiles,
    "--profile": _profiles,
    "--hardware": _hardware,
    "--node": _of_cluster("node"),
    "--node-name": _of_cluster("node"),
    "--drain": _of_cluster("node"),
    "--namespace": _of_cluster("namespace"),
    "--device": _of_cluster("device"),
}
_FILES = {"-f", "--slices", "--kubeconfig", "--batch", "--bundle", "--sharing-config", "--examples"}
_NODE_DEVICES = {"device", "devices"}  # arguments of commands about this node
_FILE_ARGUMENTS = {"files", "scenario"}
# `explain KIND NAME` and `explain KIND/NAME`: the kinds from which claims come.
_EXPLAINED = ("claim", "pod", *WORKLOADS)


def candidates(group: click.Group, words: Sequence[str]) -> Candidates:
    """Return the words that can complete the last word. `words` are all words after the program's name."""
    before, typed = list(words[:-1]), words[-1] if words else ""
    if before[:1] == ["agent"]:
        flags = tuple((flag.name, flag.meaning) for flag in FLAGS if flag.name.startswith(typed))
        return Candidates(flags, has_files=not typed.startswith("-"))
    if before and not before[0].startswith("-") and before[0] not in group.list_commands(click.Context(group)):
        return Candidates(())  # for an unknown command, click would offer the list of commands again
    seen: list[CompletionItem] = _Walk(group, {}, "dra-driver", "").get_completions(before, typed)
    plain = tuple((item.value, item.help or "") for item in seen if item.type == "plain")
    return Candidates(plain, any(item.type in {"file", "dir"} for item in seen))


class _Walk(ShellComplete):
    """Click's completion of commands and options, with values for options and arguments that click can't complete."""

    name = "words"
    source_template = ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return click's candidates, or those for the option or argument at the cursor."""
        glued, equals, typed = incomplete.partition("=")
        if equals and glued.startswith("--"):  # --fleet=dgx: the option's name stays in front of each value
            found = self.get_completions([*args, glued], typed)
            return [CompletionItem(f"{glued}={one.value}", type=one.type, help=one.help) for one in found]
        return super().get_completions(args, incomplete)


def complete_parameter(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem] | None:
    """Return the values that a parameter may have, or None to use click's own answer."""
    options = set(parameter.opts)
    source = next((_BY_OPTION[name] for name in parameter.opts if name in _BY_OPTION), None)
    if source is not None:
        return _starting(source(ctx, typed), typed)
    if options & _FILES or parameter.name in _FILE_ARGUMENTS or isinstance(parameter.type, click.Path | click.File):
        return [CompletionItem(typed, type="file")]
    if parameter.name in _NODE_DEVICES and isinstance(parameter, click.Argument):
        return _starting(node_gpus(), typed)
    if parameter.name == "words":
        return _explained(ctx, parameter, typed)
    return None


def _explained(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete KIND, then NAME, or KIND/NAME."""
    given = ctx.params.get(str(parameter.name)) or ()
    kind, slash, _ = typed.partition("/")
    if slash:
        names = _names(ctx, kind)
        return _starting([f"{kind}/{name}" for name in names], typed)
    if not given:
        return _starting(_EXPLAINED, typed)
    return _starting(_names(ctx, str(given[0])), typed)


def _starting(names: Sequence[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def kubeconfig_of(ctx: click.Context) -> str | None:
    """Return the kubeconfig that the command line names, or else the one that kubectl would use."""
    named = ctx.params.get("kubeconfig")
    return str(named) if named else default_kubeconfig()
