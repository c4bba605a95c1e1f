"""Container view: the environment, device nodes, mounts and hooks that a container gets for its CDI device ids.

In: CDI folders and ids. Out: a `ContainerView`. No container is started, and the folders are read again each time.
Source: Container Device Interface specification 0.3.0 to 1.0.0, and its reference implementation's cache.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.base.errors import NodeError
from dra_driver.base.wire import CdiWire, Wire

_VENDOR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_RELEASED = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


@dataclass(frozen=True, slots=True)
class ContainerDeviceNode:
    """One device node in the container.

    `host_path` is the node on the host whose device numbers apply if the spec leaves them out.
    """

    path: str
    host_path: str
    type: str
    major: int
    minor: int
    permissions: str

    def __str__(self) -> str:
        return f"{self.path} {self.type} {self.major}:{self.minor} {self.permissions}"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What the edits of some CDI devices add to a container. `files` are the spec files with those edits."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[ContainerDeviceNode, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()  # (in the container, on the host)
    hooks: tuple[str, ...] = ()
    additional_gids: tuple[int, ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class _Spec:
    path: Path
    document: CdiWire
    priority: int


def resolve(ids: Iterable[str], folders: Sequence[Path]) -> ContainerView:
    """Return what a container with these devices sees. If two folders have a device, that of the later folder counts.

    Raises: NodeError("node.cdi") for an id that is in no file, in two files of one folder, or only in an invalid file.
    """
    wanted = list(dict.fromkeys(ids))  # runtimes ignore repetitions
    specs, faults = _read(folders)
    found = [_find(name, specs, faults) for name in wanted]
    env: dict[str, str] = {}
    nodes: dict[str, ContainerDeviceNode] = {}
    mounts: dict[str, str] = {}
    hooks: list[str] = []
    gids: set[int] = set()
    for edits in _edits(found):
        env |= {item.partition("=")[0]: item for item in edits.get("env") or []}
        nodes |= {node["path"]: _node(node) for node in edits.get("deviceNodes") or []}
        mounts |= {mount["containerPath"]: mount["hostPath"] for mount in edits.get("mounts") or []}
        hooks += [" ".join([h["hookName"], h["path"], *(h.get("args") or [])[1:]]) for h in edits.get("hooks") or []]
        gids |= set(edits.get("additionalGids") or [])
    files = tuple(dict.fromkeys(spec.path for spec, _ in found))
    return ContainerView(
        tuple(env.values()), tuple(nodes.values()), tuple(mounts.items()), tuple(hooks), tuple(sorted(gids)), files
    )


def _edits(found: Sequence[tuple[_Spec, Wire]]) -> Iterable[Wire]:
    """Yield the edits in the order in which they apply: a file's own edits once, before those of its first device."""
    seen: set[Path] = set()
    for spec, device in found:
        if spec.path not in seen:
            seen.add(spec.path)
            yield spec.document.get("containerEdits") or {}
        yield device.get("containerEdits") or {}


def _find(name: str, specs: Sequence[_Spec], faults: Sequence[str]) -> tuple[_Spec, Wire]:
    kind, _, device_name = name.partition("=")
    hits = [
        (spec, device)
        for spec in specs
        if spec.document["kind"] == kind
        for device in spec.document["devices"]
        if device["name"] == device_name
    ]
    if not hits:
        raise NodeError("cdi", f"unresolvable CDI device {name}", hint="; ".join(faults))
    top = max(spec.priority for spec, _ in hits)
    hits = [hit for hit in hits if hit[0].priority == top]
    if len(hits) > 1:
        paths = ", ".join(str(spec.path) for spec, _ in hits)
        raise NodeError("cdi", f"conflicting CDI device {name}: it is in {paths}")
    return hits[0]


def _read(folders: Sequence[Path]) -> tuple[list[_Spec], list[str]]:
    """Read every spec file, and return the valid ones and the faults of the others."""
    specs, faults = [], []
    for priority, folder in enumerate(folders):
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                document = _parse(path)
            except FileNotFoundError:
                continue  # removed since the folder was listed
            except ValueError as fault:
                faults.append(f"{path.name}: {fault}")
                continue
            if fault_text := _fault(document):
                faults.append(f"{path.name}: {fault_text}")
            else:
                specs.append(_Spec(path, document, priority))
    return specs, faults


def _parse(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    import yaml  # noqa: PLC0415  (our own files are JSON)

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise ValueError(str(fault)) from fault


def _fault(document: Any) -> str:
    """Return why a runtime ignores a spec file; "" if it does not."""
    if not isinstance(document, dict):
        return "not an object"
    version, kind = document.get("cdiVersion"), str(document.get("kind"))
    if version not in _RELEASED:
        return f"cdiVersion {version!r} is not a released version"
    vendor, slash, cdi_class = kind.partition("/")
    if not slash or not _VENDOR_CLASS.fullmatch(vendor) or not _VENDOR_CLASS.fullmatch(cdi_class):
        return f"kind {kind!r} is not <vendor>/<class>"
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        return "no devices"
    names = [str(device.get("name", "")) for device in devices]
    for name in names:
        if not _DEVICE.fullmatch(name):
            return f"device name {name!r} is not allowed"
    if len(set(names)) < len(names):
        return "a device name occurs twice"
    if not any(device.get("containerEdits") for device in devices) and not document.get("containerEdits"):
        return "no container edits"
    needed = _version_needed(document, cdi_class)
    if _RELEASED.index(version) < _RELEASED.index(needed):
        return f"cdiVersion {version} is below {needed}, which its fields need"
    return ""


def _version_needed(document: CdiWire, cdi_class: str) -> str:
    devices = document["devices"]
    edits = [document.get("containerEdits") or {}, *(device.get("containerEdits") or {} for device in devices)]
    if any("additionalGids" in e or "intelRdt" in e for e in edits):
        return "0.7.0"
    if "annotations" in document or any("annotations" in d for d in devices) or "." in cdi_class:
        return "0.6.0"
    if any("hostPath" in node for e in edits for node in e.get("deviceNodes") or []) or any(
        not device["name"][0].isalpha() for device in devices
    ):
        return "0.5.0"
    if any("type" in mount for e in edits for mount in e.get("mounts") or []):
        return "0.4.0"
    return "0.3.0"


def _node(node: Wire) -> ContainerDeviceNode:
    """Return a device node. What the spec leaves out is read from the node on the host, as a runtime does."""
    path = node["path"]
    host_path = node.get("hostPath") or path
    kind, major, minor = node.get("type", ""), node.get("major"), node.get("minor")
    if not kind or (major is None and kind != "p"):
        try:
            status = Path(host_path).stat()
        except OSError as fault:
            raise NodeError("cdi", f"device node {host_path} can't be read: {fault.strerror}") from fault
        kind = kind or ("b" if stat.S_ISBLK(status.st_mode) else "c")
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return ContainerDeviceNode(path, host_path, kind, major or 0, minor or 0, node.get("permissions") or "rwm")
