"""Semantic versions 2.0.0, strict, as Kubernetes reads them.

In: the text of a version attribute. Out: an immutable `Semver`, ordered as the specification orders versions. Build
metadata is kept but plays no part in equality or order. Parsing is never lenient: `normalize` is the one place that
repairs a text, and only for callers that ask for it.

Source: semver.org 2.0.0; the blang/semver parser that Kubernetes uses (error texts, 64-bit numbers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import ClassVar, NamedTuple

from dra_driver.base.errors import InputError

_UINT64_MAX = 2**64 - 1
_INTERNED = 64  # texts up to this length are parsed once and shared
_DIGITS = re.compile(r"[0-9]*")
_ALPHANUMERIC = re.compile(r"[0-9A-Za-z-]*")


class SemverError(InputError):
    """The text is not a semantic version."""

    branch = "input.semver"


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """One version. `prerelease` has numbers and words in order; `build` plays no part in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Read a strict version: three numeric parts, no leading zeros, no `v`.

        Raises:
            SemverError: The text is not such a version; the message is the one that Kubernetes uses.
        """
        return _parse(text) if len(text) <= _INTERNED else _parse.__wrapped__(text)

    def compare(self, other: Semver) -> int:
        """Return -1, 0 or 1. A pre-release is lower than its release, and numbers are lower than words."""
        if self.major != other.major:
            return 1 if self.major > other.major else -1
        if self.minor != other.minor:
            return 1 if self.minor > other.minor else -1
        if self.patch != other.patch:
            return 1 if self.patch > other.patch else -1
        return _compare_prerelease(self.prerelease, other.prerelease)

    def __eq__(self, other: object) -> bool:
        return self.compare(other) == 0 if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self.compare(other) < 0

    def __hash__(self) -> int:
        return hash((self.major, self.minor, self.patch, self.prerelease))

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        return text + ("+" + ".".join(self.build) if self.build else "")


def normalize(text: str) -> str:
    """Repair a lenient version: strip one `v`, strip leading zeros, and add missing parts.

    Raises:
        SemverError: A part is missing where a pre-release or build follows.

    Source: the CEL function semver(text, true) of Kubernetes.
    """
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part.encode("utf-8", "surrogatepass")) > 1:  # the server counts bytes, not characters
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped and stripped[0].isdigit() else "0" + stripped
    if len(parts) < 3:
        if any(mark in parts[-1] for mark in "+-"):
            raise SemverError("format", "short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _compare_prerelease(mine: tuple[int | str, ...], theirs: tuple[int | str, ...]) -> int:
    if not mine or not theirs:
        return (not mine) - (not theirs)
    for left, right in zip(mine, theirs, strict=False):
        if left == right:
            continue
        if isinstance(left, int) and isinstance(right, int):
            return 1 if left > right else -1
        if isinstance(left, str) and isinstance(right, str):
            return 1 if left.encode() > right.encode() else -1
        return 1 if isinstance(left, str) else -1
    return (len(mine) > len(theirs)) - (len(mine) < len(theirs))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _number(text: str, noun: str) -> int:
    """Read the major, minor or patch number; `noun` is its name in errors."""
    if not _DIGITS.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in {noun.lower()} number {_quoted(text)}")
    if len(text) > 1 and text[0] == "0":
        raise SemverError("format", f"{noun} number must not contain leading zeroes {_quoted(text)}")
    return _uint64(text)


def _uint64(text: str) -> int:
    if not text:
        raise SemverError("format", 'strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > 20 or int(text) > _UINT64_MAX:
        raise SemverError("format", f"strconv.ParseUint: parsing {_quoted(text)}: value out of range")
    return int(text)


def _prerelease_part(text: str) -> int | str:
    if not text:
        raise SemverError("format", "Prerelease is empty")
    if _DIGITS.fullmatch(text):
        if len(text) > 1 and text[0] == "0":
            raise SemverError("format", f"Numeric PreRelease version must not contain leading zeroes {_quoted(text)}")
        return _uint64(text)
    if not _ALPHANUMERIC.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in prerelease {_quoted(text)}")
    return text


def _build_part(text: str) -> str:
    if not text:
        raise SemverError("format", "Build meta data is empty")
    if not _ALPHANUMERIC.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in build meta data {_quoted(text)}")
    return text


@lru_cache(maxsize=4096)
def _parse(text: str) -> Semver:
    if not text:
        raise SemverError("format", "Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise SemverError("format", "No Major.Minor.Patch elements found")
    major, minor = _number(parts[0], "Major"), _number(parts[1], "Minor")
    rest, plus, build = parts[2].partition("+")
    rest, minus, prerelease = rest.partition("-")
    patch = _number(rest, "Patch")
    return Semver(
        major,
        minor,
        patch,
        tuple(_prerelease_part(part) for part in prerelease.split(".")) if minus else (),
        tuple(_build_part(part) for part in build.split(".")) if plus else (),
    )


# Kubernetes: the minor versions that this driver supports, their feature gates, and the minors that change
# behaviour.

OLDEST_MINOR, NEWEST_MINOR = 34, 37
VERSIONS = tuple(f"1.{minor}" for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1))


class Since:
    """What came since which minor, beside the gates of `FEATURE_GATES`."""

    # the API server
    COUNTERS_APART = 35  # shared counters are in slices without devices; 1.34 requires them beside the devices
    INFORMING_TAINTS = 35  # a taint may have the effect None, and a device 16 of them, not 4
    ADVANCED_DEVICES = 35  # a slice with taints or counters has at most 64 devices
    ORDERED_RESOURCE_VERSIONS = 35  # resourceVersions are promised to be numbers that grow (KEP-5504)
    PLAIN_KEY_PATHS = 36  # the path of a fault in a map's key no longer contains the key
    # the version of DeviceTaintRules that can have the effect None, which deletes nothing (KEP-5055)
    TAINT_RULES: ClassVar[Mapping[int, str]] = {35: "v1alpha3", 36: "v1beta2", 37: "v1"}

    # the kubelet
    KUBELET_LISTS_CLAIMS = 36  # it always does: KubeletPodResourcesDynamicResources can't be switched off

    # the scheduler and its allocator
    IMPLICIT_NAMES = 35  # claims are made for the implicit resource names of classes
    SAFE_SHARES = 35  # DRAConsumableCapacity no longer crashes it
    JOINED_POOLS = 35  # slices with counters belong to their pool on every node; an incomplete pool is not used
    SORTED_SEARCH = 36  # pools are sorted, and what a refused candidate took is given back
    STRICT_CAPACITY = 37  # a capacity that does not fit ends the search; configs of a claim are merged
    # the first patch release of each minor that checks the limit of 32 devices for each request; all of later minors do
    LIMIT_PER_REQUEST: ClassVar[Mapping[int, int]] = {34: 12, 35: 9, 36: 5, 37: 1}
    # the first that keeps counters by driver and pool name, not by pool name alone; all of later minors do
    COUNTERS_PER_POOL: ClassVar[Mapping[int, int]] = {36: 4}

    # selectors
    STRICT_URLS = 36  # built with Go 1.26
    CEL_GO_29 = 37  # built with cel-go 0.29: new costs, quantities that don't change in place, bounded functions


class FeatureGate(NamedTuple):
    """A gate: the first minor here that has it, and the first in which it is on by default (None: none so far)."""

    since: int
    on_since: int | None


ADMIN_ACCESS = "DRAAdminAccess"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
COMPATIBILITY_GROUPS = "DRADeviceCompatibilityGroups"
CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
DERIVED_ATTRIBUTES = "DRADerivedAttributes"
DEVICE_STATUS = "DRAResourceClaimDeviceStatus"
DEVICE_TAINTS = "DRADeviceTaints"
EXTENDED_RESOURCE = "DRAExtendedResource"
FRACTIONAL_RANGE = "DRAFractionalCapacityRange"
LIST_ATTRIBUTES = "DRAListTypeAttributes"
OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
PRIORITIZED_LIST = "DRAPrioritizedList"

FEATURE_GATES: Mapping[str, FeatureGate] = {
    ADMIN_ACCESS: FeatureGate(34, 34),
    PRIORITIZED_LIST: FeatureGate(34, 34),
    DEVICE_STATUS: FeatureGate(34, 34),
    CONSUMABLE_CAPACITY: FeatureGate(34, 36),
    PARTITIONABLE_DEVICES: FeatureGate(34, 36),
    DEVICE_TAINTS: FeatureGate(34, 36),
    BINDING_CONDITIONS: FeatureGate(34, 36),
    EXTENDED_RESOURCE: FeatureGate(34, 36),
    LIST_ATTRIBUTES: FeatureGate(36, None),
    FRACTIONAL_RANGE: FeatureGate(37, 37),
    COMPATIBILITY_GROUPS: FeatureGate(37, None),
    DERIVED_ATTRIBUTES: FeatureGate(37, None),
    OPTIONAL_NODE_OPERATIONS: FeatureGate(37, None),
}


def minor_of(version: str) -> int:
    """Return the minor of "1.36", "v1.36.4" or "1.36+"; 0 for any other text."""
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0].partition("-")[0].removesuffix("+")
    return int(minor) if major == "1" and minor.isascii() and minor.isdecimal() else 0


def nearest_version(minor: int) -> str:
    """Return the version of `VERSIONS` that is nearest to a minor."""
    return f"1.{min(max(minor, OLDEST_MINOR), NEWEST_MINOR)}"


def knows_gate(minor: int, gate: str) -> bool:
    """Return whether a minor has a gate of `FEATURE_GATES`, on or off."""
    return minor >= FEATURE_GATES[gate].since


def is_before(minor: int, since: int) -> bool:
    """Return whether a server's minor is older than another one; 0, an unknown minor, counts as the newest."""
    return 0 < minor < since


def gate_defaults(minor: int) -> dict[str, bool]:
    """Return the gates of a minor, and whether each is on by default."""
    return {
        name: gate.on_since is not None and gate.on_since <= minor
        for name, gate in FEATURE_GATES.items()
        if gate.since <= minor
    }
