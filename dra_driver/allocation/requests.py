"""The plan of a pod's claims: what they request, read once for all nodes.

In: claims and classes as wire dicts. Out: a `Plan` of `ClaimPlan`s with `Alternative`s, and the checks that Kubernetes
makes before it searches, in its order (what an earlier `All` request finds comes before an error of a later claim).

Source: Kubernetes structured allocator, the first half of Allocate and validateDeviceRequest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.constraints.constraint import Constraint
from dra_driver.allocation.constraints.make import make_constraint
from dra_driver.allocation.features import Features
from dra_driver.allocation.matching import Matcher, Matchers
from dra_driver.allocation.outcome import AllocatorError, Category
from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.rules import AllocatorRules
from dra_driver.model import limits
from dra_driver.model.kubernetes import DERIVED_ATTRIBUTES, LIST_ATTRIBUTES
from dra_driver.model.wire import ClaimWire, ClassWire, Wire


@dataclass(slots=True, eq=False)
class Alternative:
    """One request, or one of its alternatives."""

    claim: int
    request: int
    number: int  # its position among the alternatives of the request
    name: str
    parent: str  # the name of the request, if this is one of several alternatives
    wire: Wire
    device_class: ClassWire
    matcher: Matcher
    is_all: bool
    count: int
    is_admin: bool
    tolerations: Sequence[Wire]
    asked: Mapping[str, str]

    @property
    def request_name(self) -> str:
        """The name of the request itself."""
        return self.parent or self.name

    @property
    def full_name(self) -> str:
        """The name that results use."""
        return f"{self.parent}/{self.name}" if self.parent else self.name


@dataclass(slots=True)
class RequestPlan:
    """One request with one alternative, or several in order of preference. `fault` is why an alternative is refused."""

    name: str
    has_choice: bool
    alternatives: list[Alternative] = field(default_factory=list)
    fault: AllocatorError | None = None


@dataclass(slots=True)
class ClaimPlan:
    """One claim."""

    wire: ClaimWire
    name: str
    requests: list[RequestPlan] = field(default_factory=list)
    constraint_wires: Sequence[Wire] = ()
    knows_distinct: bool = False
    distinct_forgets: bool = True
    compares_lists: bool = False

    def constraints(self) -> list[Constraint]:
        """Make the claim's constraints, without any devices.

        Raises:
            AllocatorError: A constraint is of an unknown kind, or of one that is switched off.
        """
        made = []
        for number, wire in enumerate(self.constraint_wires):
            constraint = make_constraint(
                wire, knows_distinct=self.knows_distinct, forgets=self.distinct_forgets, lists=self.compares_lists
            )
            if constraint is None:
                text = f"claim {self.name}, constraint #{number}: empty constraint (unsupported constraint type?)"
                raise AllocatorError(Category.FEATURE_DISABLED, text)
            made.append(constraint)
        return made


@dataclass(slots=True)
class Plan:
    """All claims of a pod. A plan `is_plain` if nothing before the search depends on the node."""

    claims: list[ClaimPlan]
    alternatives: list[Alternative] = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        requests = [request for claim in self.claims for request in claim.requests]
        self.alternatives = [alternative for request in requests for alternative in request.alternatives]
        self.is_plain = (
            not any(claim.constraint_wires for claim in self.claims)
            and not any(alternative.is_all for alternative in self.alternatives)
            and not any(request.fault for request in requests)
            and sum(alternative.count for alternative in self.alternatives) <= limits.ALLOCATION_RESULTS
        )


class ClaimReader:
    """Reads claims together with the classes of the cluster."""

    def __init__(
        self, classes: Sequence[ClassWire], rules: AllocatorRules, features: Features, matchers: Matchers
    ) -> None:
        self._classes = {wire["metadata"]["name"]: wire for wire in classes}
        self._rules = rules
        self._features = features
        self._matchers = matchers

    def plan(self, claims: Sequence[ClaimWire]) -> Plan:
        """Read the claims. Faults are recorded in the plan: they count only once the search reaches them."""
        return Plan([self._claim(index, wire) for index, wire in enumerate(claims)])

    def _claim(self, index: int, wire: ClaimWire) -> ClaimPlan:
        devices: Wire = (wire.get("spec") or {}).get("devices") or {}
        plan = ClaimPlan(
            wire,
            claim_name(wire),
            constraint_wires=devices.get("constraints") or (),
            knows_distinct=self._rules.shares,
            distinct_forgets=self._rules.distinct_forgets,
            compares_lists=self._rules.knows(LIST_ATTRIBUTES) and self._features.list_attributes,
        )
        for number, request in enumerate(devices.get("requests") or ()):
            plan.requests.append(self._request(plan, index, number, request))
        return plan

    def _request(self, claim: ClaimPlan, index: int, number: int, wire: Wire) -> RequestPlan:
        choices: Sequence[Wire] = wire.get("firstAvailable") or ()
        plan = RequestPlan(wire["name"], bool(choices))
        where = f"claim {claim.name}, request {wire['name']}"
        try:
            self._check_gates(claim, where, wire, choices)
            for position, choice in enumerate(choices or (wire.get("exactly") or {},)):
                plan.alternatives.append(self._alternative(claim, (index, number, position), wire, choice))
        except AllocatorError as fault:
            plan.fault = fault
        return plan

    def _check_gates(self, claim: ClaimPlan, where: str, wire: Wire, choices: Sequence[Wire]) -> None:
        if choices and not self._features.prioritized_list:
            text = f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled"
            raise AllocatorError(Category.FEATURE_DISABLED, text)
        if self._features.consumable_capacity or not self._rules.shares:
            return
        reason = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
        if (wire.get("exactly") or {}).get("capacity") is not None:
            raise AllocatorError(Category.FEATURE_DISABLED, f"{where}: {reason}")
        for choice in choices:
            if choice.get("capacity") is not None:
                raise AllocatorError(
                    Category.FEATURE_DISABLED, f"claim {claim.name}, subrequest {choice['name']}: {reason}"
                )

    def _alternative(self, claim: ClaimPlan, place: tuple[int, int, int], request: Wire, wire: Wire) -> Alternative:
        is_choice = bool(request.get("firstAvailable"))
        name = wire["name"] if is_choice else request["name"]
        selectors: Sequence[Wire] = wire.get("selectors") or ()
        admin = None if is_choice else wire.get("adminAccess")
        device_class = self._checked(f"claim {claim.name}, request {name}", wire, selectors, admin)
        class_name = device_class["metadata"]["name"]
        written = (
            (f"class {class_name}", (device_class.get("spec") or {}).get("selectors") or ()),
            (f"claim {claim.name}", selectors),
        )
        return Alternative(
            *place,
            name=name,
            parent=request["name"] if is_choice else "",
            wire=wire,
            device_class=device_class,
            matcher=self._matchers.matcher(written),
            is_all=wire["allocationMode"] == "All",
            count=int(wire.get("count") or 0),
            is_admin=admin is True,
            tolerations=wire.get("tolerations") or (),
            asked=_amounts(wire),
        )

    def _checked(self, where: str, wire: Wire, selectors: Sequence[Wire], admin: bool | None) -> ClassWire:
        """Check a request or alternative in the scheduler's order; return its device class. Raises: AllocatorError."""
        knows_derived = self._rules.knows(DERIVED_ATTRIBUTES)
        if wire.get("derivedAttributes") and knows_derived and not self._features.derived_attributes:
            text = f"{where}: cannot handle request with derived attributes, the feature is disabled"
            raise AllocatorError(Category.FEATURE_DISABLED, text)
        for number, selector in enumerate(selectors):
            if selector.get("cel") is None:
                text = f"{where}, selector #{number}: CEL expression empty (unsupported selector type?)"
                raise AllocatorError(Category.UNSUPPORTED, text)
        if admin is not None and not self._features.admin_access:
            text = f"{where}: admin access is requested, but the feature is disabled"
            raise AllocatorError(Category.FEATURE_DISABLED, text)
        found = self._class(where, wire.get("deviceClassName") or "")
        if (mode := wire.get("allocationMode")) not in {"ExactCount", "All"}:
            raise AllocatorError(Category.UNSUPPORTED, f"{where}: unsupported count mode {mode}")
        return found

    def _class(self, where: str, name: str) -> ClassWire:
        if not name:
            text = f"{where}: missing device class name (unsupported request type?)"
            raise AllocatorError(Category.UNSUPPORTED, text)
        found = self._classes.get(name)
        if found is None:
            reason = f'could not retrieve device class {name}: deviceclass.resource.k8s.io "{name}" not found'
            raise AllocatorError(Category.UNKNOWN_CLASS, f"{where}: {reason}")
        return found


def _amounts(wire: Wire) -> Mapping[str, str]:
    requests: Mapping[str, Any] = (wire.get("capacity") or {}).get("requests") or {}
    return {name: value if isinstance(value, str) else str(value) for name, value in requests.items()}
