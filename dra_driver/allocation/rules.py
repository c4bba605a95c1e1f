"""The behaviours in which one Kubernetes version's allocator differs from another's, as data.

In: a version and the feature gates. Out: `Features` (what is switched on) and `Rules` (how that version's allocator, in
the variant that these features choose, behaves). No behaviour lives here: the other modules of the room ask the flags.

The rule: Kubernetes, package dynamic-resource-allocation/structured, variants stable, incubating and experimental.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from dra_driver.model.errors import InputError

KUBERNETES_VERSIONS = ("1.34", "1.35", "1.36", "1.37")
NEWEST = KUBERNETES_VERSIONS[-1]

# Gates that are on where nothing else is said. Source: Kubernetes feature gates, per version.
_DEFAULT_GATES: dict[str, frozenset[str]] = {
    "1.34": frozenset({"DRAAdminAccess", "DRAPrioritizedList", "DRAResourceClaimDeviceStatus"}),
    "1.35": frozenset({"DRAAdminAccess", "DRAPrioritizedList", "DRAResourceClaimDeviceStatus"}),
}
_DEFAULT_GATES["1.36"] = _DEFAULT_GATES["1.35"] | {
    "DRAConsumableCapacity",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
}
_DEFAULT_GATES["1.37"] = _DEFAULT_GATES["1.36"] | {"DRAFractionalCapacityRange"}


class UnknownVersionError(InputError):
    """No rules are known for this Kubernetes version."""

    branch = "input.kubernetes"


@dataclass(frozen=True, slots=True)
class Features:
    """What the allocator may do. The names of `from_names` are those of Kubernetes' allocator."""

    admin_access: bool = False
    prioritized_list: bool = False
    consumable_capacity: bool = False
    binding_conditions: bool = False
    taints: bool = False
    partitionable: bool = False
    fractional_range: bool = False

    @classmethod
    def from_names(cls, names: Mapping[str, bool]) -> Features:
        """Read the switches of a recorded allocation (`AdminAccess`, `DeviceTaints`, …)."""
        return cls(**{_BY_NAME[name]: bool(on) for name, on in names.items() if name in _BY_NAME})

    @classmethod
    def from_gates(cls, kubernetes: str, gates: Mapping[str, bool] | None = None) -> Features:
        """Derive the switches as the scheduler does: the version's defaults, changed by `gates`.

        Raises:
            UnknownVersionError: There are no rules for the version.
        """
        on = set(_DEFAULT_GATES[_known(kubernetes)])
        for gate, wanted in (gates or {}).items():
            (on.add if wanted else on.discard)(gate)
        return cls(
            admin_access="DRAAdminAccess" in on,
            prioritized_list="DRAPrioritizedList" in on,
            consumable_capacity="DRAConsumableCapacity" in on,
            binding_conditions={"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"} <= on,
            taints="DRADeviceTaints" in on,
            partitionable="DRAPartitionableDevices" in on,
            fractional_range="DRAFractionalCapacityRange" in on,
        )

    @property
    def gates(self) -> dict[str, bool]:
        """The gates that selectors depend on."""
        return {"DRAConsumableCapacity": self.consumable_capacity}


_BY_NAME = {
    "AdminAccess": "admin_access",
    "PrioritizedList": "prioritized_list",
    "ConsumableCapacity": "consumable_capacity",
    "DeviceBindingAndStatus": "binding_conditions",
    "DeviceTaints": "taints",
    "PartitionableDevices": "partitionable",
    "FractionalCapacityRange": "fractional_range",
}
SWITCHES = tuple(field.name for field in fields(Features))

Variant = Literal["stable", "incubating", "experimental"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How one variant of one version behaves. A flag that is named after a fault says that the fault is there."""

    kubernetes: str
    variant: Variant
    exact: bool  # recorded verdicts of this version exist; otherwise its rules are derived from its source
    # what the variant knows
    shares: bool = False  # consumable capacity, distinctAttribute, binding conditions, bindsToNode
    copies_tolerations: bool = True
    only_harmful_taints: bool = True  # effects other than NoSchedule and NoExecute are ignored
    # pools
    hides_counter_slices: bool = True  # with PartitionableDevices off, slices with counters don't exist
    joins_counter_slices: bool = True  # slices with counters belong to their pool on every node
    counter_slices_stay: bool = False  # … or are looked up when a device of the node needs them
    sorted_pools: bool = False  # pools by driver and name, slices by name; otherwise Go's map order decides
    binding_slices_last: bool = False
    looks_elsewhere: bool = True  # slices that don't reach the node are counted before a pool is called incomplete
    uses_incomplete_pools: bool = False
    invalid_pool_is_fatal: bool = False
    counters_of: Literal["slice", "pool name", "pool"] = "pool name"
    shares_hold_counters: bool = False  # allocated shares count when the available counters are computed
    # search
    combinations: bool = False  # devices of one request are tried in rising order only
    too_many_stops: bool = True  # "more than 32" ends the search of the request, not only this branch
    static_all_capacity: bool = False
    merges_claim_configs: bool = False
    # faults
    distinct_forgets: bool = True  # distinctAttribute remembers the latest device of each request only
    leaks: bool = False  # what a refused candidate took before it was refused is not given back
    all_restarts_alternatives: bool = False  # `All` in a later alternative goes on as the first one
    late_match_key: bool = False  # the second alternative sees the first one's matches while it is prepared

    @property
    def orders_vary(self) -> bool:
        """Whether the order of pools, and so the outcome, may differ from run to run."""
        return not self.sorted_pools


def choose_rules(kubernetes: str, features: Features) -> Rules:
    """Choose the variant that a version's scheduler would run with these features.

    Raises:
        UnknownVersionError: There are no rules for the version.
    """
    version = _known(kubernetes)
    shares = features.consumable_capacity or features.binding_conditions
    if version in {"1.36", "1.37"}:
        return _newer(version, shares=shares)
    base = Rules(version, "incubating", exact=version == "1.35")
    base = replace(base, leaks=True, all_restarts_alternatives=True, late_match_key=True)
    if shares:
        base = replace(base, variant="experimental", shares=True, binding_slices_last=True)
    elif not any((features.admin_access, features.prioritized_list, features.taints, features.partitionable)):
        base = replace(
            base,
            variant="stable",
            copies_tolerations=False,
            only_harmful_taints=False,
            hides_counter_slices=False,
            joins_counter_slices=False,
            too_many_stops=False,
        )
    if version == "1.34":
        base = replace(
            base,
            copies_tolerations=False,
            only_harmful_taints=False,
            hides_counter_slices=False,
            joins_counter_slices=False,
            looks_elsewhere=False,
            uses_incomplete_pools=True,
            invalid_pool_is_fatal=True,
            counters_of="slice",
        )
    return base


def _newer(version: str, *, shares: bool) -> Rules:
    rules = Rules(version, "incubating" if shares else "stable", exact=version == "1.36", shares=shares)
    if shares:
        rules = replace(rules, sorted_pools=True, combinations=True, shares_hold_counters=True)
    if version == "1.37":
        rules = replace(rules, counters_of="pool", merges_claim_configs=True, static_all_capacity=True)
        rules = replace(rules, counter_slices_stay=shares, distinct_forgets=False)
    return rules


def _known(kubernetes: str) -> str:
    version = ".".join(kubernetes.removeprefix("v").split(".")[:2])
    if version not in KUBERNETES_VERSIONS:
        raise UnknownVersionError(
            "version",
            f"no allocation rules for Kubernetes {kubernetes}",
            hint=f"known are {', '.join(KUBERNETES_VERSIONS)}",
        )
    return version
