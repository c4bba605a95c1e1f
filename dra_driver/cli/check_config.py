"""`dra-driver check-config`: read files for the agents in the same way as the agents, before a rollout.

In: files. Out: for each file its kind and a summary, or every fault in it. The kind follows from the `version` and the
keys at the top level; a new kind of file is one more row of `KINDS`. Nothing is changed, and no cluster is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dra_driver.cli.output import console, print_text, printable, write_document
from dra_driver.model.errors import DriverError, ExitCode, InputError
from dra_driver.model.sharing import Tenants
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument


@dataclass(frozen=True, slots=True)
class ConfigKind:
    """One kind of file: its name, its version, the top-level keys that no other kind has, its flag, and its reader.

    The reader returns lines for people, and raises InputError with every fault.
    """

    title: str
    version: str
    keys: tuple[str, ...]
    used_by: str
    read: Callable[[Path, Tenants], list[str]]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file that was read: its kind if that is known, and lines for people or what is wrong with the file."""

    path: Path
    kind: ConfigKind | None
    lines: tuple[str, ...] = ()
    fault: DriverError | None = None

    def document(self) -> Wire:
        """Return the document of the file; `usedBy` is the flag that names such a file."""
        fault = self.fault
        return {
            "file": str(self.path),
            "usedBy": self.kind.used_by if self.kind else None,
            "version": self.kind.version if self.kind else None,
            "notes": list(self.lines),
            "fault": {"code": fault.code, "message": fault.message, "remedy": fault.hint} if fault else None,
        }


def _read_sharing(path: Path, tenants: Tenants) -> list[str]:
    from dra_driver.claims.config.node_settings import read_sharing_config

    rules = read_sharing_config(path, tenants)
    named = [
        f"{rule.name}: {'exclusive' if rule.mode is None else f'shared by {rule.mode.value}'}" for rule in rules.rules
    ]
    return [*named, *(f"note: {note}" for note in rules.notes)]


def _read_mig(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.inventory.mig.geometry_file import read_configurations

    found = read_configurations(path)
    return [f"configuration {name}: {_count(len(entries), 'entry', 'entries')}" for name, entries in found.items()]


def _read_health(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.health.policy import DEFAULT_RULES
    from dra_driver.health.policy_file import read_health_policy

    policy = read_health_policy(path)
    changed = {key: rule for key, rule in policy.rules.items() if rule != DEFAULT_RULES[key]}
    return [f"{key}: {'ignored' if rule.is_ignored else rule.effect}" for key, rule in changed.items()]


def _read_remediation(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.remediation.policy_file import read_remediation_policy

    policy = read_remediation_policy(path)
    return [f"{key}: {action}" for key, action in policy.actions.items() if action != "none"]


def _read_passthrough(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.inventory.passthrough.rules_file import read_passthrough_rules

    rules = read_passthrough_rules(path).rules
    uses = {True: "virtual machines", False: "both"}
    return [f"{', '.join(r.gpus)} on {', '.join(r.nodes)}: for {uses[r.is_only_passed]}" for r in rules]


_PLUGIN_KEYS = ("sharing", "flags", "resources", "imex")  # Source: NVIDIA k8s-device-plugin, api/config/v1


def _read_manifest(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.cli.manifest_configs import read_manifest_configs

    return read_manifest_configs(path)


MANIFEST = ConfigKind("manifest with configs for devices", "resource.k8s.io", (), "kubectl apply", _read_manifest)
KINDS = (
    ConfigKind("sharing configuration", "rules/v1", ("rules",), "--sharing-config", _read_sharing),
    ConfigKind("configuration of NVIDIA's device plugin", "v1", _PLUGIN_KEYS, "--sharing-config", _read_sharing),
    ConfigKind("configurations of the MIG manager", "v1", ("mig-configs",), "--mig-config", _read_mig),
    ConfigKind("health policy", "health/v1", ("faults", "ignoreXids", "evictions"), "--health-policy", _read_health),
    ConfigKind("file of GPUs for virtual machines", "passthrough/v1", ("gpus",), "--passthrough", _read_passthrough),
    ConfigKind(
        "remediation policy",
        "remediation/v1",
        ("actions", "weekly", "tries"),
        "--remediation-policy",
        _read_remediation,
    ),
)


@click.command(name="check-config")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--mps-tenants",
    type=click.Choice([one.value for one in Tenants]),
    default=Tenants.ANY.value,
    show_default=True,
    help="the agents' setting of this name: with `namespace`, rules with MPS must name their namespaces",
)
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def check_config_command(files: tuple[Path, ...], mps_tenants: str, output: str) -> int:
    """Check files for the agents before they are rolled out, and configs for devices in manifests.

    \b
    dra-driver check-config examples/sharing/node/rules.yaml
    dra-driver check-config sharing.yaml mig-configs.yaml -o json
    dra-driver check-config claim.yaml deviceclass.yaml

    Each file (`-` is standard input) is read by the same code as in the agent, and every fault is listed with its
    place. In manifests, the configs for devices in claims, templates and classes are validated as on a node. Whether a
    GPU has room for the partitions is checked only on the node. To see what a machine would publish with a file, use
    `dra-driver devices --hardware simulated:PROFILE --sharing-config FILE`.

    Exit status 3: a file has faults, or its kind is not known.
    """  # noqa: D301
    from dra_driver.documents.document import STANDARD_INPUT

    paths = [STANDARD_INPUT if str(path) == "-" else path for path in files]
    if paths.count(STANDARD_INPUT) > 1:
        raise click.UsageError("standard input can be read only once")
    found = [_checked(path, Tenants(mps_tenants)) for path in paths]
    if output == "table":
        for one in found:
            _show(one)
    else:
        write_document(OutputDocument(DocumentKind.CONFIG_CHECK, {"files": [one.document() for one in found]}), output)
    return next((one.fault.exit_code for one in found if one.fault is not None), ExitCode.OK)


def _checked(path: Path, tenants: Tenants) -> CheckedFile:
    kind = None
    try:
        kind = kind_of(path)
        return CheckedFile(path, kind, tuple(kind.read(path, tenants)))
    except DriverError as fault:
        return CheckedFile(path, kind, fault=fault)


def _show(one: CheckedFile) -> None:
    if one.fault is not None:
        click.echo(printable(f"dra-driver: {one.fault.message} [{one.fault.code}]"), err=True)
        if one.fault.hint:
            click.echo(printable(f"  {one.fault.hint}"), err=True)
    elif one.kind is not None:
        out = console()
        print_text(out, f"{one.path}: {one.kind.title} (version {one.kind.version}, {one.kind.used_by}), no faults")
        for line in one.lines:
            print_text(out, line, indent=2)


def kind_of(path: Path) -> ConfigKind:
    """Return the kind of a file. Raises: InputError("input.config-kind") if it is not known; as `read_document`."""
    from dra_driver.cli.manifest_configs import has_objects
    from dra_driver.documents.document import read_document

    try:
        document: Any = read_document(path)
    except InputError:
        if has_objects(path):  # a manifest may have several documents
            return MANIFEST
        raise
    if isinstance(document, Mapping) and {"apiVersion", "kind"} <= document.keys():
        return MANIFEST
    content = document if isinstance(document, Mapping) else {}
    version = content.get("version")
    for kind in KINDS:
        if _is_mostly(content, kind) and version in (kind.version, None):
            return kind
    for kind in KINDS:  # a file with a fault in its version or its keys: its reader reports that
        if _is_mostly(content, kind) or version == kind.version != "v1":
            return kind
    known = "; ".join(f"{kind.title} (version: {kind.version}, {kind.keys[0]}: ...)" for kind in KINDS)
    raise InputError("config-kind", f"{path} is not a file that an agent reads", hint=f"known: {known}")


def _is_mostly(content: Mapping[str, Any], kind: ConfigKind) -> bool:
    """Return whether a file probably is of a kind: it has the kind's version, or most of its keys are the kind's."""
    own = content.keys() & set(kind.keys)
    return bool(own) and (content.get("version") == kind.version or 2 * len(own) >= len(content.keys() - {"version"}))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
