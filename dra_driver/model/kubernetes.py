"""Kubernetes: the minor versions that this driver supports, their feature gates, and the minors that change behaviour.

Values only. What a gate or a minor changes is decided by the code that asks about it, and always in the form "from
this minor on": a minor that is newer than all that are known here has what the newest has.
Source: Kubernetes feature gate reference, 1.34 to 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

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
