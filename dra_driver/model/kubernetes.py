"""Kubernetes: the minor versions that this driver supports, their feature gates, and the minors that change behaviour.

Values only. What a gate or a minor changes is decided by the code that asks about it.
Source: Kubernetes feature gate reference, 1.34 to 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OLDEST_MINOR, NEWEST_MINOR = 34, 37
VERSIONS = tuple(f"1.{minor}" for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1))

# From this minor on, shared counters are in slices without devices; 1.34 requires them beside the devices.
COUNTERS_APART_MINOR = 35
# From this minor on, resourceVersions are promised to be numbers that grow (KEP-5504).
ORDERED_VERSIONS_MINOR = 35
# From this minor on, a kubelet always lists claims: KubeletPodResourcesDynamicResources can't be switched off.
KUBELET_LISTS_CLAIMS_MINOR = 36


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


def is_known(gate: str, version: str) -> bool:
    """Return whether a version has a gate of `FEATURE_GATES`."""
    return FEATURE_GATES[gate].since <= minor_of(version)


def gate_defaults(minor: int) -> dict[str, bool]:
    """Return the gates of a minor, and whether each is on by default."""
    return {
        name: gate.on_since is not None and gate.on_since <= minor
        for name, gate in FEATURE_GATES.items()
        if gate.since <= minor
    }
