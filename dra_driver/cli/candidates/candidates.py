"""Candidates for the last word of a command line, found by walking the table of commands.

In: words. Out: candidates, and whether file names fit as well. Only the command on the line is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem, ShellComplete

from dra_driver.cli.candidates import sources
from dra_driver.cli.inputs.kubeconfig import default_kubeconfig
from dra_driver.kube.paths import WORKLOADS
from dra_driver.model.flags import FLAGS
from dra_driver.model.vendors import VENDORS

Source = Callable[[click.Context, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Words that can complete the line, each with a short help text, and whether a file name fits as well."""

    words: tuple[tuple[str, str], ...]
    has_files: bool = False


def _profiles(_ctx: click.Context, _typed: str) -> Sequence[str]:
    return sources.profiles()


def _hardware(_ctx: click.Context, _typed: str) -> Sequence[str]:
    return ("auto", *(vendor.name for vendor in VENDORS), *(f"simulated:{name}" for name in sources.profiles()))


def _of_cluster(kind: str) -> Source:
    return lambda ctx, _typed: _names(ctx, kind)


def _names(ctx: click.Context, kind: str) -> Sequence[str]:
    """Return the names of a kind in the cluster and namespace that the options before the cursor select."""
    given = ctx.params
    return sources.names(kind, kubeconfig_of(ctx), given.get("namespace"), given.get("context") or "")


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
        return _starting(sources.node_gpus(), typed)
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
