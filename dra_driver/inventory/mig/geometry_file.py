"""Geometry file: named configurations in the format of NVIDIA's MIG manager.

In: the document as parsed from YAML. Out: the configurations, or every fault in it with its place. Pure. A field that
the format does not define is a fault, because a misspelt name would otherwise go unnoticed and leave GPUs unchanged.

    version: v1
    mig-configs:
      two-kinds:
        - device-filter: ["0x233010DE"]      # PCI device and vendor id; without it every model
          devices: all                       # or a list of indices in PCI order
          mig-enabled: true
          mig-devices: {"1g.10gb": 4, "3g.40gb": 1}

If several entries cover a GPU, the last one counts. Source: NVIDIA mig-parted, `api/spec/v1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import InputError

VERSION = "v1"
PROFILE = r"[1-9][0-9]*g\.[1-9][0-9]*gb(?:[+-][a-z]+(?:\.[a-z]+)*)?"
PART_OF_INSTANCE = re.compile(rf"[1-9][0-9]*c\.{PROFILE}")
_WHOLE = re.compile(PROFILE)
_FILTER = re.compile(r"0[xX][0-9a-fA-F]{8}")
_MAX_COUNT = 64


@dataclass(frozen=True, slots=True)
class GeometryEntry:
    """The state that a configuration defines for some GPUs. Empty `filters` and `indices` of None cover every GPU."""

    is_enabled: bool
    counts: Mapping[str, int]  # number of partitions by profile
    indices: frozenset[int] | None = None
    filters: frozenset[int] = frozenset()  # each is PCI device id << 16 | vendor id

    def covers(self, gpu: GpuFacts, index: int) -> bool:
        """Return whether the entry covers this GPU, which has position `index` on its node."""
        is_chosen = self.indices is None or index in self.indices
        return is_chosen and (not self.filters or gpu.pci_id in self.filters)


Configurations = Mapping[str, tuple[GeometryEntry, ...]]


def read_configurations(document: Any, where: str) -> Configurations:
    """Read a document; `where` names the file. Raises: InputError("input.mig-config") with every fault."""
    faults: list[str] = []
    found = dict(_configurations(document, faults))
    if faults:
        raise InputError(
            "mig-config",
            f"{where}: {'; '.join(faults)}",
            hint="the format is that of the MIG manager's mig-configs, see docs/mig.md",
        )
    return found


def _configurations(document: Any, faults: list[str]) -> Iterator[tuple[str, tuple[GeometryEntry, ...]]]:
    if not isinstance(document, Mapping):
        faults.append(f"expected version and mig-configs, got {_kind(document)}")
        return
    _refuse_unknown(document, ("version", "mig-configs"), "", faults)
    if document.get("version") != VERSION:
        faults.append(f"version: expected {VERSION}, got {document.get('version')!r}")
    named = document.get("mig-configs")
    if not isinstance(named, Mapping) or not named:
        faults.append(f"mig-configs: expected at least one configuration by name, got {_kind(named)}")
        return
    for name, entries in named.items():
        if not isinstance(entries, list) or not entries:
            faults.append(f"mig-configs.{name}: expected a list with at least one entry, got {_kind(entries)}")
            continue
        read = [_entry(entry, f"mig-configs.{name}[{i}]", faults) for i, entry in enumerate(entries)]
        yield str(name), tuple(entry for entry in read if entry is not None)


def _entry(entry: Any, path: str, faults: list[str]) -> GeometryEntry | None:
    if not isinstance(entry, Mapping):
        faults.append(f"{path}: expected named fields, got {_kind(entry)}")
        return None
    _refuse_unknown(entry, ("device-filter", "devices", "mig-enabled", "mig-devices"), path, faults)
    is_enabled = entry.get("mig-enabled")
    if not isinstance(is_enabled, bool):
        faults.append(f"{path}.mig-enabled: expected true or false, got {_kind(is_enabled)}")
    counts = _counts(entry.get("mig-devices"), f"{path}.mig-devices", faults)
    if is_enabled is True and entry.get("mig-devices") is None:
        faults.append(f"{path}.mig-devices: missing, although mig-enabled is true ({{}} for none)")
    if is_enabled is False and counts:
        faults.append(f"{path}.mig-devices: given, although mig-enabled is false")
    indices = _indices(entry.get("devices"), f"{path}.devices", faults)
    filters = _filters(entry.get("device-filter"), f"{path}.device-filter", faults)
    return GeometryEntry(is_enabled is True, counts, indices, filters)


def _counts(value: Any, path: str, faults: list[str]) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        faults.append(f"{path}: expected counts by profile, got {_kind(value)}")
        return {}
    for profile, count in value.items():
        if not isinstance(profile, str) or not (_WHOLE.fullmatch(profile) or PART_OF_INSTANCE.fullmatch(profile)):
            faults.append(f"{path}: {profile!r} is not a profile such as 1g.10gb or 1g.10gb+me")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_COUNT:
            faults.append(f"{path}.{profile}: expected a whole number from 0 to {_MAX_COUNT}, got {count!r}")
    return {str(profile): count for profile, count in value.items() if isinstance(count, int)}


def _indices(value: Any, path: str, faults: list[str]) -> frozenset[int] | None:
    if value == "all":
        return None
    if isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        return frozenset(value)
    faults.append(f"{path}: expected all or a list of indices, got {'nothing' if value is None else repr(value)}")
    return frozenset()


def _filters(value: Any, path: str, faults: list[str]) -> frozenset[int]:
    texts = [] if value is None else value if isinstance(value, list) else [value]
    good = [text for text in texts if isinstance(text, str) and _FILTER.fullmatch(text)]
    if bad := [text for text in texts if text not in good]:
        faults.append(f'{path}: expected PCI device and vendor ids such as "0x233010DE", got {bad}')
    return frozenset(int(text, 16) for text in good)


def _refuse_unknown(found: Mapping[Any, Any], known: tuple[str, ...], path: str, faults: list[str]) -> None:
    start = f"{path}." if path else ""
    faults += [f"{start}{key}: unknown field, known are {', '.join(known)}" for key in found if key not in known]


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "named fields"
    return "a list" if isinstance(value, list) else repr(value)
