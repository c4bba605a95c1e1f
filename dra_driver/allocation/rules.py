"""How the allocators of different Kubernetes versions differ, as data.

In: a version and its features. Out: `AllocatorRules`: how that version's allocator, in the variant that these features
choose, behaves. This module holds no behaviour: the other modules of `allocation` read the flags.

Source: Kubernetes, package dynamic-resource-allocation/structured, variants stable, incubating and experimental.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from dra_driver.base.errors import InputError
from dra_driver.base.versions import (
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
    Since,
    gate_defaults,
    knows_gate,
    minor_of,
)
from dra_driver.base.wire import Wire

# The features of an allocator: what the feature gates of a Kubernetes version switch on.

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
    binding_or_status: bool = False  # one of the two gates that binding conditions need
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
        switches = {_BY_NAME[name]: bool(on) for name, on in names.items() if name in _BY_NAME}
        return cls(**switches, binding_or_status=any(names.get(name) for name in _BINDING_NAMES))

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
            binding_or_status=on.get(BINDING_CONDITIONS, False) or on.get(DEVICE_STATUS, False),
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


_BINDING_NAMES = ("DeviceBinding", "DeviceStatus", "DeviceBindingAndStatus")
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


# The patch releases whose code produced the recorded verdicts.
RECORDED_PATCHES = {34: 4, 35: 8, 36: 4, 37: 1}
Variant = Literal["stable", "incubating", "experimental"]


@dataclass(frozen=True, slots=True)
class AllocatorRules:
    """How one variant of one version behaves. A flag named after a fault says that the variant has the fault."""

    minor: int
    variant: Variant
    exact: bool  # recorded verdicts of this version exist; otherwise its rules are derived from its source
    # what the variant knows
    shares: bool = False  # consumable capacity, distinctAttribute, binding conditions, bindsToNode
    copies_tolerations: bool = True
    only_harmful_taints: bool = True  # effects other than NoSchedule and NoExecute are ignored
    # pools
    hides_counter_slices: bool = True  # with PartitionableDevices off, slices with counters are ignored
    joins_counter_slices: bool = True  # slices with counters belong to their pool on every node
    counter_slices_stay: bool = False  # slices with counters are looked up only when a device needs them
    sorted_pools: bool = False  # pools are sorted by driver and name, slices by name; otherwise by Go's map order
    binding_slices_last: bool = False
    looks_elsewhere: bool = True  # slices that don't reach the node are counted before a pool is called incomplete
    uses_incomplete_pools: bool = False
    invalid_pool_is_fatal: bool = False
    counters_of: Literal["slice", "pool name", "pool"] = "pool name"
    shares_hold_counters: bool = False  # allocated shares count when the available counters are computed
    any_share_is_shared: bool = False  # a held share has paid the device's counters, even without capacity
    # search
    combinations: bool = False  # devices of one request are tried in rising order only
    limit_per_request: bool = False  # the limit of 32 is checked for each request before the next one is read
    capacity_errors: bool = False  # a capacity that does not fit an int64, or is negative, ends the search
    too_many_stops: bool = True  # "more than 32" ends the search of the request, not only this branch
    static_all_capacity: bool = False
    merges_claim_configs: bool = False
    # messages
    names_alternative: bool = True  # capacity that is asked for without the gate: the alternative, or the request
    names_device: bool = False  # a selector that fails: the device, and advice on a missing key
    # faults
    distinct_compares: bool = True  # 1.34 compares where values are stored, so that none is ever the same
    distinct_forgets: bool = True  # distinctAttribute remembers only the latest device of each request
    leaks: bool = False  # what a candidate took before it was refused is not given back
    all_restarts_alternatives: bool = False  # `All` in a later alternative continues as the first alternative
    late_match_key: bool = False  # while it is prepared, the second alternative sees the matches of the first

    @property
    def kubernetes(self) -> str:
        """The minor version as people write it, such as "1.35"."""
        return f"1.{self.minor}"

    def knows(self, gate: str) -> bool:
        """Return whether the version has a feature gate, on or off."""
        return knows_gate(self.minor, gate)

    @property
    def orders_vary(self) -> bool:
        """Whether the order of pools, and therefore the outcome, may differ from run to run."""
        return not self.sorted_pools

    def selector_gates(self, features: Features) -> dict[str, bool]:
        """Return the gates on which selectors depend.

        Variants that know about shares pass `allowMultipleAllocations` on to selectors, however the gate is set.
        """
        return {CONSUMABLE_CAPACITY: self.shares, LIST_ATTRIBUTES: features.list_attributes}


def choose_rules(kubernetes: str, features: Features) -> AllocatorRules:
    """Return the rules of the variant that a version's scheduler would run with these features.

    Raises:
        UnknownVersionError: There are no rules for the version.
    """
    minor = minor_of(minor_version(kubernetes))
    return rules_of(minor, _patch(kubernetes, minor), features)


def rules_of(minor: int, patch: int, features: Features) -> AllocatorRules:
    """Return the rules of a patch release; a minor above the newest known has the newest rules."""
    shares = features.consumable_capacity or features.binding_conditions
    if minor >= Since.SORTED_SEARCH:
        rules = _newer(minor, features, shares=shares)
        if patch >= Since.COUNTERS_PER_POOL.get(minor, 0):
            rules = replace(rules, counters_of="pool")
    else:
        # 1.34 runs the variant that knows shares with either of two gates, and one of them is on by default.
        known_by_either = minor < Since.JOINED_POOLS and features.binding_or_status
        rules = _older(minor, features, shares=shares or known_by_either)
    return replace(rules, limit_per_request=patch >= Since.LIMIT_PER_REQUEST.get(minor, 0))


def _older(minor: int, features: Features, *, shares: bool) -> AllocatorRules:
    base = AllocatorRules(minor, "incubating", exact=minor in RECORDED_PATCHES)
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
    if minor < Since.JOINED_POOLS:
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
            distinct_compares=False,
            names_alternative=False,
        )
    return base


def _patch(kubernetes: str, minor: int) -> int:
    """Return the patch release in a version; for a minor version, the release of the recorded verdicts."""
    found = kubernetes.removeprefix("v").split("-")[0].split("+")[0].split(".")[2:]
    return int(found[0]) if found and found[0].isdigit() else RECORDED_PATCHES[minor]


def _newer(minor: int, features: Features, *, shares: bool) -> AllocatorRules:
    is_strict = minor >= Since.STRICT_CAPACITY
    alpha = features.compatibility_groups or features.derived_attributes or features.optional_operations
    experimental = features.list_attributes or (is_strict and alpha)
    shares = shares or experimental or (is_strict and features.fractional_range)
    variant: Variant = "experimental" if experimental else "incubating" if shares else "stable"
    rules = AllocatorRules(minor, variant, exact=minor in RECORDED_PATCHES, shares=shares)
    if shares:
        rules = replace(rules, sorted_pools=True, combinations=True, shares_hold_counters=True)
    if is_strict:
        rules = replace(rules, capacity_errors=True, any_share_is_shared=True)
        rules = replace(rules, merges_claim_configs=True, static_all_capacity=True, names_device=True)
        rules = replace(rules, counter_slices_stay=shares, distinct_forgets=False)
    return rules


# Outcomes: the allocator's answer for a pod's claims on one node.


class Category(StrEnum):
    """Why an attempt ended as it did."""

    NONE = "none"
    NO_FIT = "no-fit"
    CEL_COMPILE_ERROR = "cel-compile-error"
    CEL_RUNTIME_ERROR = "cel-runtime-error"
    UNKNOWN_CLASS = "unknown-class"
    FEATURE_DISABLED = "feature-disabled"
    TOO_MANY_RESULTS = "too-many-results"
    INCOMPLETE_POOL_ALL = "incomplete-pool-all"
    INVALID_POOL_ALL = "invalid-pool-all"
    INVALID_POOL = "invalid-pool"
    ALL_CONSTRAINT_UNSATISFIED = "all-constraint-unsatisfied"
    BAD_CAPACITY = "bad-capacity"
    NOT_JUDGED = "not-judged"  # it is not known what Kubernetes itself would answer
    UNSUPPORTED = "unsupported"  # a request that the API server would refuse
    UNDECIDED = "undecided"  # our own limit: the search was abandoned

    @property
    def is_node_local(self) -> bool:
        """Whether other nodes are still tried; any other error ends the pod's scheduling."""
        return self in {Category.NONE, Category.NO_FIT, Category.INVALID_POOL}


class AllocatorError(Exception):
    """An error of the allocator, with Kubernetes' text."""

    def __init__(self, category: Category, text: str) -> None:
        super().__init__(text)
        self.category = category
        self.text = text


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The allocator's answer for one node.

    `results` holds one AllocationResult per claim, or is None. `steps` is the number of placements that the scheduler
    itself would try. `seconds` is a rough estimate of the time it would take, for comparison with its limit per node.
    """

    category: Category
    results: list[Wire] | None = None
    error: str | None = None
    others_possible: bool = False  # the order of Go maps decides, and this is only one possible outcome
    steps: int = 0
    seconds: float = 0.0
    is_lower_bound: bool = False  # the search was cut short because nothing can fit; the scheduler tries more steps

    @property
    def ok(self) -> bool:
        """Whether everything was allocated."""
        return self.results is not None

    @property
    def times_out(self) -> bool:
        """Whether the scheduler would give up before it reaches this answer.

        Source: Kubernetes gate DRASchedulerFilterTimeout, default 10 s per node.
        """
        return self.seconds > FILTER_TIMEOUT_SECONDS


FILTER_TIMEOUT_SECONDS = 10.0
