"""The features of an allocator: what the feature gates of a Kubernetes version switch on.

In: a version and its gates. Out: `Features`, which the room reads, and the names of the gates that are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import (
    ADMIN_ACCESS,
    BINDING_CONDITIONS,
    COMPATIBILITY_GROUPS,
    CONSUMABLE_CAPACITY,
    DERIVED_ATTRIBUTES,
    DEVICE_STATUS,
    DEVICE_TAINTS,
    FRACTIONAL_RANGE,
    LIST_ATTRIBUTES,
    OPTIONAL_NODE_OPERATIONS,
    PARTITIONABLE_DEVICES,
    PRIORITIZED_LIST,
    VERSIONS,
    gate_defaults,
    minor_of,
)

# The gates that change what is allocated.
GATES = (
    ADMIN_ACCESS,
    PRIORITIZED_LIST,
    DEVICE_STATUS,
    CONSUMABLE_CAPACITY,
    PARTITIONABLE_DEVICES,
    DEVICE_TAINTS,
    BINDING_CONDITIONS,
    FRACTIONAL_RANGE,
    LIST_ATTRIBUTES,
    COMPATIBILITY_GROUPS,
    DERIVED_ATTRIBUTES,
    OPTIONAL_NODE_OPERATIONS,
)


class UnknownVersionError(InputError):
    """There are no rules for this Kubernetes version."""

    branch = "input.kubernetes"


@dataclass(frozen=True, slots=True)
class Features:
    """What the allocator may do. `from_names` takes the names that Kubernetes' allocator uses."""

    admin_access: bool = False
    prioritized_list: bool = False
    consumable_capacity: bool = False
    binding_conditions: bool = False
    taints: bool = False
    partitionable: bool = False
    fractional_range: bool = False
    list_attributes: bool = False
    compatibility_groups: bool = False
    derived_attributes: bool = False
    optional_operations: bool = False

    @classmethod
    def from_names(cls, names: Mapping[str, bool]) -> Features:
        """Read the switches of a recorded allocation (`AdminAccess`, `DeviceTaints`, …)."""
        return cls(**{_BY_NAME[name]: bool(on) for name, on in names.items() if name in _BY_NAME})

    @classmethod
    def from_gates(cls, kubernetes: str, gates: Mapping[str, bool] | None = None) -> Features:
        """Derive the switches as the scheduler does, from the version's defaults and `gates`.

        Raises:
            UnknownVersionError: There are no rules for the version.
        """
        on = {**gate_defaults(minor_of(minor_version(kubernetes))), **(gates or {})}
        return cls(
            admin_access=on.get(ADMIN_ACCESS, False),
            prioritized_list=on.get(PRIORITIZED_LIST, False),
            consumable_capacity=on.get(CONSUMABLE_CAPACITY, False),
            binding_conditions=on.get(BINDING_CONDITIONS, False) and on.get(DEVICE_STATUS, False),
            taints=on.get(DEVICE_TAINTS, False),
            partitionable=on.get(PARTITIONABLE_DEVICES, False),
            fractional_range=on.get(FRACTIONAL_RANGE, False),
            list_attributes=on.get(LIST_ATTRIBUTES, False),
            compatibility_groups=on.get(COMPATIBILITY_GROUPS, False),
            derived_attributes=on.get(DERIVED_ATTRIBUTES, False),
            optional_operations=on.get(OPTIONAL_NODE_OPERATIONS, False),
        )


def gates_on(kubernetes: str, gates: Mapping[str, bool]) -> set[str]:
    """Return the gates that are on: the version's defaults, changed by `gates`. Raises: UnknownVersionError."""
    known = {**gate_defaults(minor_of(minor_version(kubernetes))), **gates}
    return {gate for gate, is_on in known.items() if is_on}


_BY_NAME = {
    "AdminAccess": "admin_access",
    "PrioritizedList": "prioritized_list",
    "ConsumableCapacity": "consumable_capacity",
    "DeviceBindingAndStatus": "binding_conditions",
    "DeviceTaints": "taints",
    "PartitionableDevices": "partitionable",
    "FractionalCapacityRange": "fractional_range",
    "ListTypeAttributes": "list_attributes",
    "CompatibilityGroups": "compatibility_groups",
    "DerivedAttributes": "derived_attributes",
    "OptionalNodeOperations": "optional_operations",
}


def minor_version(kubernetes: str) -> str:
    """Return the minor version of a version, such as "1.35". Raises: UnknownVersionError."""
    version = ".".join(kubernetes.removeprefix("v").split(".")[:2])
    if version not in VERSIONS:
        raise UnknownVersionError(
            "version",
            f"no allocation rules for Kubernetes {kubernetes}",
            hint=f"known versions are {', '.join(VERSIONS)}",
        )
    return version
