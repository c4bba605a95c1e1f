"""`dra-driver check-config`: read files for the agents in the same way as the agents, before a rollout.

In: files. Out: for each file its kind and a summary, or every fault in it. The kind follows from the `version` and the
keys at the top level; a new kind of file is one more row of `KINDS`. Nothing is changed, and no cluster is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.base.flags import VENDORS
from dra_driver.base.wire import Tenants, Wire
from dra_driver.tools.output import console, print_text, printable, write_document
from dra_driver.tools.world.access import DocumentKind, OutputDocument

# Validate the configs for devices in manifests, as the nodes and the webhook validate them.


def has_objects(path: Path) -> bool:
    """Return whether a file contains Kubernetes objects."""
    try:
        return any(_is_object(wire) for wire in _objects(path))
    except DriverError:
        return False


def read_manifest_configs(path: Path) -> list[str]:
    """Return a line for each config in the objects of a file. Raises: InputError("input.bad-config")."""
    from dra_driver.tools.webhook.review import KINDS

    lines: list[str] = []
    faults: list[str] = []
    for wire in _objects(path):
        if wire.get("kind") in KINDS:
            _validate(wire, lines, faults)
    if faults:
        raise InputError(
            "bad-config", f"{path}: {'; '.join(faults)}", hint="docs/device-configs.md says what a config may have"
        )
    return lines or ["no config for a device"]


def _validate(wire: Any, lines: list[str], faults: list[str]) -> None:
    from dra_driver.node.claims.config import validate
    from dra_driver.tools.webhook.review import opaque_configs

    metadata = wire.get("metadata")
    name = f"{wire['kind']} {metadata.get('name') if isinstance(metadata, dict) else '?'}"
    for config in opaque_configs(wire["kind"], wire):
        if config.driver not in {vendor.driver for vendor in VENDORS}:
            lines.append(f"{name}: {config.path}: not validated, because {config.driver} is not one of our drivers")
            continue
        found = validate(config.parameters, config.path, config.driver)
        faults += [f"{name}: {fault}" for fault in found]
        lines.append(f"{name}: {config.path}: for {config.driver}")


def _is_object(wire: Any) -> bool:
    return isinstance(wire, dict) and isinstance(wire.get("apiVersion"), str) and isinstance(wire.get("kind"), str)


def _objects(path: Path) -> Iterator[Any]:
    from dra_driver.base.text.yaml_values import STANDARD_INPUT, read_document
    from dra_driver.tools.world.documents import read_documents

    if path == STANDARD_INPUT:  # read once, as one document
        yield read_document(path)
    else:
        yield from (document.wire for document in read_documents([str(path)]))


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
    from dra_driver.node.claims.config_schema import read_sharing_config

    rules = read_sharing_config(path, tenants)
    named = [
        f"{rule.name}: {'exclusive' if rule.mode is None else f'shared by {rule.mode.value}'}" for rule in rules.rules
    ]
    return [*named, *(f"note: {note}" for note in rules.notes)]


def _read_mig(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.node.devices.geometry_file import read_configurations

    found = read_configurations(path)
    return [f"configuration {name}: {_count(len(entries), 'entry', 'entries')}" for name, entries in found.items()]


def _read_health(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.node.health.faults import DEFAULT_RULES
    from dra_driver.node.health.policy_files import read_health_policy

    policy = read_health_policy(path)
    changed = {key: rule for key, rule in policy.rules.items() if rule != DEFAULT_RULES[key]}
    return [f"{key}: {'ignored' if rule.is_ignored else rule.effect}" for key, rule in changed.items()]


def _read_remediation(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.node.health.policy_files import read_remediation_policy

    policy = read_remediation_policy(path)
    return [f"{key}: {action}" for key, action in policy.actions.items() if action != "none"]


def _read_passthrough(path: Path, _tenants: Tenants) -> list[str]:
    from dra_driver.node.devices.rules_files import read_passthrough_rules

    rules = read_passthrough_rules(path).rules
    uses = {True: "virtual machines", False: "both"}
    return [f"{', '.join(r.gpus)} on {', '.join(r.nodes)}: for {uses[r.is_only_passed]}" for r in rules]


_PLUGIN_KEYS = ("sharing", "flags", "resources", "imex")  # Source: NVIDIA k8s-device-plugin, api/config/v1


def _read_manifest(path: Path, _tenants: Tenants) -> list[str]:

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
    from dra_driver.base.text.yaml_values import STANDARD_INPUT

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
    from dra_driver.base.text.yaml_values import read_document

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
