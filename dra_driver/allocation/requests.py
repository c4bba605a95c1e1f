"""The plan of a pod's claims: what they request, read once for all nodes.

In: claims and classes as wire dicts. Out: a `Plan` of `ClaimPlan`s with `Alternative`s, and the checks that Kubernetes
makes before it searches, in its order (what an earlier `All` request finds comes before an error of a later claim).

Source: Kubernetes structured allocator, the first half of Allocate and validateDeviceRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.constraints import Constraint, make_constraint
from dra_driver.allocation.pools import DeviceRecord
from dra_driver.allocation.rules import AllocatorError, AllocatorRules, Category, Features
from dra_driver.allocation.usage import claim_name
from dra_driver.base import errors
from dra_driver.base.versions import DERIVED_ATTRIBUTES, LIST_ATTRIBUTES
from dra_driver.base.wire import ClaimWire, ClassWire, DeviceWire, Wire
from dra_driver.selectors import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.grouping import key_maker
from dra_driver.selectors.kubernetes import KubernetesEngine, KubernetesSelector
from dra_driver.selectors.reads import Read, ReadSet

# Matching: whether the selectors of a class and a request accept a device.

ChainVerdict = bool | AllocatorError
_ADVICE = (
    ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional"
    " fields"
)


@dataclass(frozen=True, slots=True)
class OwnedSelector:
    """One selector of a chain: its owner ("class x" or "claim y"), and its program or the reason why there is none."""

    owner: str
    number: int
    expression: str
    selector: KubernetesSelector | SelectorCompileError

    @property
    def is_of_class(self) -> bool:
        """Whether the selector belongs to a device class."""
        return self.owner.startswith("class ")

    @property
    def place(self) -> str:
        """Where the selector stands, as the scheduler writes it."""
        return f"{self.owner}: selector #{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class GroupVerdict:
    """The verdict of a chain on a group of equal devices. `refused_by` is the selector that did not accept them."""

    verdict: ChainVerdict
    refused_by: OwnedSelector | None = None
    runtime_error: str | None = None


_ACCEPTED = GroupVerdict(verdict=True)


class Matcher:
    """A chain of selectors with all its verdicts so far."""

    __slots__ = ("_by_device", "_by_key", "_keys", "_names_device", "chain", "reads")

    def __init__(self, chain: Sequence[OwnedSelector], *, names_device: bool = False) -> None:
        self.chain = chain
        self._names_device = names_device
        read_sets = [one.selector.read_set for one in chain if isinstance(one.selector, KubernetesSelector)]
        self.reads = ReadSet(
            frozenset(read for one in read_sets for read in one.reads),
            frozenset(read for one in read_sets for read in one.guarded),
        )
        self._keys: dict[str, Callable[[DeviceWire], Hashable]] = {}  # by driver
        self._by_key: dict[Hashable, GroupVerdict] = {}
        self._by_device: dict[DeviceRecord, GroupVerdict] = {}

    def verdict(self, device: DeviceRecord) -> ChainVerdict:
        """Return whether the chain accepts a device, or the error with which a selector failed on it."""
        group = self.group_verdict(device)
        if isinstance(group.verdict, bool) or not self._names_device or group.runtime_error is None:
            return group.verdict
        assert group.refused_by is not None  # noqa: S101
        where = f"{group.refused_by.place} on device {'/'.join(device.id)}"
        advice = _ADVICE if "no such key:" in group.runtime_error else ""
        text = f"{where}: CEL runtime error: {group.runtime_error}{advice}"
        return AllocatorError(Category.CEL_RUNTIME_ERROR, text)

    def group_verdict(self, device: DeviceRecord) -> GroupVerdict:
        """Return the verdict on a device's group: the same object for all refused devices of one group."""
        found = self._by_device.get(device)
        if found is None:
            make = self._keys.get(device.driver)
            if make is None:
                make = self._keys[device.driver] = key_maker(self.reads, device.driver)
            key = make(device.wire)
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._judge(device)
            self._by_device[device] = found
        return found

    def _judge(self, device: DeviceRecord) -> GroupVerdict:
        view: DeviceView | None = None
        for one in self.chain:
            if isinstance(one.selector, SelectorCompileError):
                text = f"{one.place}: CEL compile error: {one.selector.text}"
                return GroupVerdict(AllocatorError(Category.CEL_COMPILE_ERROR, text), one)
            view = view or prepare_device(device.wire, device.driver)
            try:
                if not one.selector.matches_view(view):
                    return GroupVerdict(verdict=False, refused_by=one)
            except SelectorRuntimeError as error:
                text = f"{one.place}: CEL runtime error: {error.text}"
                return GroupVerdict(AllocatorError(Category.CEL_RUNTIME_ERROR, text), one, error.text)
        return _ACCEPTED


class DerivedAttribute:
    """An attribute that a request computes of each device, for its claim's constraints (DRADerivedAttributes)."""

    __slots__ = ("_program", "name")

    def __init__(self, name: str, program: KubernetesSelector | SelectorCompileError) -> None:
        self.name = name
        self._program = program

    @property
    def reads(self) -> frozenset[Read]:
        """What the expression reads of a device."""
        is_compiled = isinstance(self._program, KubernetesSelector)
        return self._program.read_set.reads if is_compiled else frozenset()  # type: ignore[union-attr]

    def value(self, device: DeviceRecord) -> Wire:
        """Return the value for a device as an attribute in a ResourceSlice.

        Raises:
            AllocatorError: The expression does not compile, or fails on this device; the allocation ends.
        """
        if isinstance(self._program, SelectorCompileError):
            text = f"compile derived attribute {self.name} failed: {self._program.text}"
            raise AllocatorError(Category.CEL_COMPILE_ERROR, text)
        try:
            return self._program.attribute_of_view(prepare_device(device.wire, device.driver))
        except SelectorRuntimeError as error:
            where = f"evaluate derived attribute {self.name} on device {'/'.join(device.id)} failed"
            raise AllocatorError(Category.CEL_RUNTIME_ERROR, f"{where}: {error.text}") from error


class Matchers:
    """Compiles selectors and keeps one matcher per chain."""

    def __init__(self, rules: AllocatorRules, features: Features) -> None:
        self._engine = KubernetesEngine(rules.kubernetes, gates=rules.selector_gates(features))
        self._names_device = rules.names_device
        self._compiled: dict[str, KubernetesSelector | SelectorCompileError] = {}
        self._chains: dict[tuple[tuple[str, int, str], ...], Matcher] = {}
        self._derived: dict[tuple[str, str], DerivedAttribute] = {}

    def matcher(self, written: Sequence[tuple[str, Sequence[Wire]]]) -> Matcher:
        """Return the matcher for the selectors of several owners, in order."""
        chain = tuple(
            (owner, number, selector["cel"]["expression"])
            for owner, selectors in written
            for number, selector in enumerate(selectors)
        )
        found = self._chains.get(chain)
        if found is None:
            found = self._chains[chain] = Matcher(
                [OwnedSelector(*one, self._compile(one[2])) for one in chain], names_device=self._names_device
            )
        return found

    def derived(self, name: str, expression: str) -> DerivedAttribute:
        """Return the derived attribute of a name and an expression; equal arguments return the same object."""
        found = self._derived.get((name, expression))
        if found is None:
            program: KubernetesSelector | SelectorCompileError
            try:
                program = self._engine.compile(expression, gives="attribute")
            except SelectorCompileError as error:
                program = error
            found = self._derived[name, expression] = DerivedAttribute(name, program)
        return found

    def _compile(self, expression: str) -> KubernetesSelector | SelectorCompileError:
        known = self._compiled.get(expression)
        if known is None:
            try:
                known = self._engine.compile(expression)
            except SelectorCompileError as error:
                known = error
            self._compiled[expression] = known
        return known


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
    derived: Mapping[str, DerivedAttribute]

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
    distinct_compares: bool = True
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
                wire,
                knows_distinct=self.knows_distinct,
                compares=self.distinct_compares,
                forgets=self.distinct_forgets,
                lists=self.compares_lists,
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
            and sum(alternative.count for alternative in self.alternatives) <= errors.ALLOCATION_RESULTS
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
            distinct_compares=self._rules.distinct_compares,
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
                if self._rules.names_alternative:
                    where = f"claim {claim.name}, subrequest {choice['name']}"
                raise AllocatorError(Category.FEATURE_DISABLED, f"{where}: {reason}")

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
            derived=self._derived(wire),
        )

    def _derived(self, wire: Wire) -> dict[str, DerivedAttribute]:
        """Return the attributes that a request derives; of two with one name the latter counts."""
        if not self._rules.knows(DERIVED_ATTRIBUTES):
            return {}
        rows = wire.get("derivedAttributes") or ()
        return {row["name"]: self._matchers.derived(row["name"], row["expression"]) for row in rows}

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
