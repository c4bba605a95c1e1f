"""Evaluate queries: every device of a fleet against the selectors of one request, as the scheduler does.

In: queries, a fleet, an engine. Out: compile errors and, for each device, whether it matches, does not match, or would
abort scheduling. Selectors are evaluated in order, those of the class first; the first that is false or fails decides.
Devices that agree on everything the selectors read are evaluated once.

Source: Kubernetes' scheduler (dynamicresources: class selectors, then request selectors).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.model.errors import ExitCode
from dra_driver.model.limits import CEL_COST, CEL_EXPRESSION_BYTES
from dra_driver.selectors.engine import Engine, Environment, SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.grouping import DeviceGroups
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.readset import ReadSet
from dra_driver.views.fleet.devices import Fleet, FleetDevice
from dra_driver.views.verdicts.queries import Query, WrittenSelector
from dra_driver.views.wording import number

MATCH, NO_MATCH, ABORT = "match", "noMatch", "abort"


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """One expression after compilation. `refusal` is the reason why the API server would not store it, or None."""

    written: WrittenSelector
    selector: KubernetesSelector | None
    error: SelectorCompileError | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The outcome for a device. `step` is the index of the selector that decided; None for a match."""

    kind: str
    step: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictGroup:
    """A group of equal devices: one converted representative, the devices, and their verdict."""

    view: DeviceView
    devices: tuple[FleetDevice, ...]
    verdict: DeviceVerdict


@dataclass(frozen=True, slots=True)
class QueryVerdicts:
    """The verdicts of one query on one fleet. `groups` is empty if an expression does not compile.

    `like` has, by the name of a node, further nodes for which the verdicts are the same.
    """

    query: Query
    compiled: tuple[CompiledSelector, ...]
    groups: tuple[VerdictGroup, ...]
    like: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def compiles(self) -> bool:
        """Return whether all expressions compile."""
        return all(one.error is None for one in self.compiled)

    def count(self, kind: str) -> int:
        """Count the devices that have a verdict."""
        return sum(self.size(group) for group in self.groups if group.verdict.kind == kind)

    def size(self, group: VerdictGroup) -> int:
        """Count the devices of a group."""
        if not self.like:
            return len(group.devices)
        return sum(1 + len(self.like.get(device.node, ())) for device in group.devices)

    def by_node(self) -> dict[str, dict[str, list[FleetDevice]]]:
        """Return the devices by node and verdict."""
        found: dict[str, dict[str, list[FleetDevice]]] = {}
        for group in self.groups:
            for device in group.devices:
                held = found.setdefault(device.node, {MATCH: [], NO_MATCH: [], ABORT: []})
                held[group.verdict.kind].append(device)
        return found

    def errors(self) -> dict[int, tuple[str | None, int | None]]:
        """Return the errors that abort scheduling and the index of the failing selector, by id() of the device."""
        aborting = (group for group in self.groups if group.verdict.kind == ABORT)
        return {id(one): (group.verdict.error, group.verdict.step) for group in aborting for one in group.devices}


def judge(queries: Iterable[Query], fleet: Fleet, engine: Engine, environment: Environment) -> list[QueryVerdicts]:
    """Evaluate every query on the fleet."""
    known: dict[str, CompiledSelector] = {}
    found = []
    for query in queries:
        compiled = []
        for written in query.selectors:
            if written.expression not in known:
                known[written.expression] = compile_written(written, engine, environment)
            one = known[written.expression]
            compiled.append(CompiledSelector(written, one.selector, one.error, one.refusal))
        if any(one.error for one in compiled):
            found.append(QueryVerdicts(query, tuple(compiled), ()))
            continue
        evaluated = fleet if _can_be_folded(compiled, fleet) else fleet.unfolded()
        found.append(QueryVerdicts(query, tuple(compiled), tuple(_groups(compiled, evaluated)), evaluated.like))
    return found


def exit_code(judged: Sequence[QueryVerdicts], environment: Environment) -> ExitCode:
    """Return the exit status for all queries.

    A compile error (for new objects also a refusal) takes precedence over a device that aborts scheduling, and such a
    device over everything else.
    """
    if not all(one.compiles for one in judged):
        return ExitCode.BAD_INPUT
    if environment == "new" and any(one.refusal for query in judged for one in query.compiled):
        return ExitCode.BAD_INPUT
    if any(one.count(ABORT) for one in judged):
        return ExitCode.ABORTS_SCHEDULING
    matched: Counter[str] = Counter()
    for one in judged:
        matched[one.query.request] += one.count(MATCH)
    return ExitCode.OK if all(matched.values()) else ExitCode.NO_MATCH


def compile_written(written: WrittenSelector, engine: Engine, environment: Environment) -> CompiledSelector:
    """Compile one expression."""
    try:
        selector = engine.compile(written.expression, environment=environment)
    except SelectorCompileError as error:
        return CompiledSelector(written, None, error)
    refusal = None if selector.admissible is not False else refusal_of(selector, engine)
    return CompiledSelector(written, selector, None, refusal)  # type: ignore[arg-type]  # read_set: our own engine only


def refusal_of(selector: object, engine: Engine) -> str:
    """Return why the API server rejects an expression that compiles for the scheduler."""
    assert isinstance(selector, KubernetesSelector)  # noqa: S101  (no other engine can tell)
    length = len(selector.expression.encode("utf-8", "surrogatepass"))
    if length > CEL_EXPRESSION_BYTES:
        return f"the expression has {length:,} bytes, at most {CEL_EXPRESSION_BYTES:,} are accepted"
    try:
        cost = engine.compile(selector.expression, environment="new").max_cost or 0
    except SelectorCompileError as error:
        return f"not accepted in a new object of Kubernetes {selector.kubernetes}: {error.text}"
    return f"too complex: worst-case cost {number(cost)} exceeds the limit of {number(CEL_COST)}"


def _can_be_folded(compiled: Sequence[CompiledSelector], fleet: Fleet) -> bool:
    """Return whether the selectors read no attribute in which a node and its repeats differ."""
    shapes = [shape for repeat in fleet.repeats for shape in repeat.shapes]
    selectors = [one.selector for one in compiled]
    return all(
        isinstance(selector, KubernetesSelector) and not any(s.varies_in(selector.read_set.reads) for s in shapes)
        for selector in selectors
    )


def _groups(compiled: Sequence[CompiledSelector], fleet: Fleet) -> list[VerdictGroup]:
    selectors = [one.selector for one in compiled if one.selector is not None]
    if all(isinstance(selector, KubernetesSelector) for selector in selectors):
        reads = ReadSet(frozenset().union(*(s.read_set.reads for s in selectors)), frozenset())
        groups = DeviceGroups(fleet.pairs(), reads)
        members: list[list[FleetDevice]] = [[] for _ in groups.views]
        for device, index in zip(fleet.devices, groups.index, strict=True):
            members[index].append(device)
        pairs = list(zip(groups.views, members, strict=True))
    else:
        pairs = [(prepare_device(device.wire, device.driver), [device]) for device in fleet.devices]
    return [VerdictGroup(view, tuple(devices), _verdict(selectors, compiled, view)) for view, devices in pairs]


def _verdict(
    selectors: Sequence[KubernetesSelector], compiled: Sequence[CompiledSelector], view: DeviceView
) -> DeviceVerdict:
    for step, selector in enumerate(selectors):
        try:
            if not selector.matches_view(view):
                return DeviceVerdict(NO_MATCH, step)
        except SelectorRuntimeError as error:
            label = compiled[step].written.label
            text = error.text if label.startswith("-e") else f"{label}: CEL runtime error: {error.text}"
            return DeviceVerdict(ABORT, step, text)
    return DeviceVerdict(MATCH)
