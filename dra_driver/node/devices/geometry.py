"""Geometry: the permanent partitions that an administrator declares, where none are created on demand.

In: a name or a list, the configurations of a file, and a GPU. Out: MIG mode and placements, or why they are impossible.
Pure. Rules say which nodes get which geometry, by their names or labels. A name is looked up in a file in the MIG
manager's format (`geometry_file`); if it is not there, it is one of `all-disabled`, `all-enabled`, `all-balanced` and
`all-<profile>` (`all-1g.10gb`, `all-1g.10gb.me`). A list has the form `1g.10gb=4,3g.40gb=1`.
Source: NVIDIA mig-parted, default configurations.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.base.errors import UsageError
from dra_driver.hardware.facts import GpuFacts, MigProfile
from dra_driver.node.devices.describing import MigPlacement
from dra_driver.node.devices.partitions import counters_of_gpu, counters_of_placement, placements_of

DISABLED, ENABLED, BALANCED, ALL = "all-disabled", "all-enabled", "all-balanced", "all-"
PROFILE = r"[1-9][0-9]*g\.[1-9][0-9]*gb(?:[+-][a-z]+(?:\.[a-z]+)*)?"
PART_OF_INSTANCE = rf"[1-9][0-9]*c\.{PROFILE}"
_ENTRY = re.compile(rf"(?P<profile>{PROFILE})=(?P<count>[0-9]{{1,2}})")
_BALANCED = {7: (3, 2, 1, 1), 4: (2, 1, 1)}  # compute slices of the GPU -> compute slices of each partition


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


@dataclass(frozen=True, slots=True)
class WantedGeometry:
    """The desired state of one GPU: its MIG mode, and the placements of its partitions in order of start."""

    is_enabled: bool
    placements: tuple[MigPlacement, ...] = ()


def is_geometry(name: str, configurations: Configurations) -> bool:
    """Return whether a name can mean a geometry: one from the file, a built-in one, or a list."""
    return name in configurations or name.startswith(ALL) or listed(name) is not None


def wanted_of(gpu: GpuFacts, index: int, name: str, configurations: Configurations) -> WantedGeometry | str | None:
    """Return the desired state of a GPU; `index` is its position among the node's GPUs in PCI order.

    Where that state is not possible, the result is a text with the reason; where the configuration does not cover this
    GPU, it is None.
    """
    if name in configurations:
        entries = [entry for entry in configurations[name] if entry.covers(gpu, index)]
        return _of_entry(gpu, entries[-1]) if entries else None
    if not is_geometry(name, configurations):
        return "the name is neither built in nor in the file"
    if name == DISABLED:
        return WantedGeometry(is_enabled=False)
    if name == ENABLED:
        return WantedGeometry(is_enabled=True)
    counted = _counted(gpu, name)
    return _of_counted(gpu, counted) if counted is not None else _no_fit(gpu)


def listed(text: str) -> Counter[str] | None:
    """Read a list of profiles; return None where the text is not a list."""
    entries = [_ENTRY.fullmatch(entry.strip()) for entry in text.split(",")]
    if any(entry is None for entry in entries):
        return None
    counted: Counter[str] = Counter()
    for entry in entries:
        if entry is not None:
            counted[entry["profile"]] += int(entry["count"])
    return counted


def _of_entry(gpu: GpuFacts, entry: GeometryEntry) -> WantedGeometry | str:
    if not entry.is_enabled:
        return WantedGeometry(is_enabled=False)
    if parts := [profile for profile in entry.counts if re.match(PART_OF_INSTANCE, profile)]:
        return f"{', '.join(parts)}: parts of a GPU instance are published where they exist, but are never created"
    return _of_counted(gpu, Counter(entry.counts))


def _of_counted(gpu: GpuFacts, counted: Counter[str]) -> WantedGeometry | str:
    placements = _placements_for(gpu, +counted)
    return _no_fit(gpu) if placements is None else WantedGeometry(is_enabled=True, placements=placements)


def _no_fit(gpu: GpuFacts) -> str:
    return f"it does not fit {gpu.product_name or 'this GPU'}"


def _placements_for(gpu: GpuFacts, counted: Counter[str]) -> tuple[MigPlacement, ...] | None:
    """Place the largest partitions first, each as low as possible; return None if they do not fit."""
    known = placements_of(gpu, with_all=True)
    by_profile = {name: [placement for placement in known if placement.profile.name == name] for name in counted}
    if not counted:
        return ()
    if not all(by_profile.values()):
        return None
    order = sorted(counted.elements(), key=lambda name: (-by_profile[name][0].profile.size, name))
    found = _place([by_profile[name] for name in order], Counter(counters_of_gpu(known)), _compute_slices(gpu))
    return None if found is None else tuple(sorted(found, key=lambda placement: placement.start))


def _place(
    choices: Sequence[Sequence[MigPlacement]], left: Mapping[str, int], compute: int, after: MigPlacement | None = None
) -> list[MigPlacement] | None:
    """Choose one placement from each choice, those of one profile in order of start: no combination is tried twice."""
    if not choices:
        return []
    for placement in choices[0]:
        if after is not None and placement.profile == after.profile and placement.start <= after.start:
            continue
        rest = {name: left[name] - counters_of_placement(placement).get(name, 0) for name in left}
        if placement.profile.slices <= compute and min(rest.values()) >= 0:
            others = _place(choices[1:], rest, compute - placement.profile.slices, placement)
            if others is not None:
                return [placement, *others]
    return None


def _counted(gpu: GpuFacts, name: str) -> Counter[str] | None:
    if name == BALANCED:
        return _balanced(gpu)
    if name.startswith(ALL):
        profile = _profile(gpu, name.removeprefix(ALL))
        return Counter({profile.name: profile.max_instances}) if profile else None
    return listed(name)


def _balanced(gpu: GpuFacts) -> Counter[str] | None:
    plain = [p for p in gpu.mig_profiles if "+" not in p.name and "-" not in p.name]
    least = {n: min((p for p in plain if p.slices == n), key=lambda p: p.size, default=None) for n in (1, 2, 3)}
    chosen = [least[n] for n in _BALANCED.get(_compute_slices(gpu), ())]
    if not chosen or None in chosen:
        return None
    return Counter(profile.name for profile in chosen if profile is not None)


def _profile(gpu: GpuFacts, name: str) -> MigProfile | None:
    """Look up a profile by name; the MIG manager writes `.me` in names where NVIDIA writes `+me`."""
    names = {name, re.sub(r"gb\.", "gb+", name)}
    return next((profile for profile in gpu.mig_profiles if profile.name in names), None)


def _compute_slices(gpu: GpuFacts) -> int:
    return max((profile.slices for profile in gpu.mig_profiles), default=0)


# Geometry rules: which geometry a node gets, by its name or its labels.

FROM_LABEL = "label"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.+]*[A-Za-z0-9])?")
_PATTERN = re.compile(r"[-a-z0-9.*?\[\]]+")
_LABEL = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*=[-A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class GeometryRule:
    """One rule. `selector` is a pattern of node names, a label as `key=value`, or "" for every node."""

    selector: str
    geometry: str

    def fits(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether the rule applies to this node."""
        key, is_label, value = self.selector.partition("=")
        if is_label:
            return labels.get(key) == value
        return not self.selector or fnmatch.fnmatchcase(node, self.selector)


def read_rules(text: str, *, has_file: bool) -> tuple[GeometryRule, ...]:
    """Read the flag's value. Without a file of configurations every name must be a built-in one.

    Raises: UsageError("usage.mig-geometry") with every fault.
    """
    rules, faults = [], []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        selector, colon, geometry = (word.strip() for word in part.rpartition(":"))
        rules.append(GeometryRule(selector, geometry))
        if colon and not (_PATTERN.fullmatch(selector) or _LABEL.fullmatch(selector)):
            faults.append(f"{selector!r} is neither a pattern of node names nor a label KEY=VALUE")
        is_built_in = geometry == FROM_LABEL or geometry.startswith(ALL) or listed(geometry) is not None
        if not is_built_in and not (has_file and _NAME.fullmatch(geometry)):
            faults.append(f"{geometry!r} is neither label, all-disabled, all-balanced, all-PROFILE nor a list")
    if faults:
        raise UsageError(
            "mig-geometry",
            f"--mig-geometry: {'; '.join(faults)}",
            hint="use for example all-1g.10gb, or gpu-a-*:1g.10gb=4,3g.40gb=1; label. Other names need --mig-config",
        )
    return tuple(rules)


def geometry_of(rules: tuple[GeometryRule, ...], node: str, labels: Mapping[str, str]) -> str:
    """Return a node's geometry, or "" for none."""
    return next((rule.geometry for rule in rules if rule.fits(node, labels)), "")
