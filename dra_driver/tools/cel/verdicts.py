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
from itertools import islice
from typing import Any

from dra_driver.allocation.funnel import FEW_NODES
from dra_driver.base.errors import CEL_COST, CEL_EXPRESSION_BYTES, ExitCode
from dra_driver.base.wire import Wire
from dra_driver.selectors.advice.lint import guarded_remedy
from dra_driver.selectors.advice.remedies import Remedy
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.engine import (
    CompileErrorKind,
    Engine,
    Environment,
    SelectorCompileError,
    SelectorRuntimeError,
)
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.grouping import DeviceGroups, nearest_misses
from dra_driver.selectors.kubernetes import KubernetesSelector
from dra_driver.selectors.reads import ReadSet, UnknownName, suggest, unknown_names
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.fields import number
from dra_driver.tools.world.fleet import Fleet, FleetDevice
from dra_driver.tools.world.positions import Position, offset_in
from dra_driver.tools.world.queries import Query, SelectorInputs, WrittenSelector

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
        return {id(device): (group.verdict.error, group.verdict.step) for group in aborting for device in group.devices}


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


# Remedies for the selectors of queries: what is wrong, and what to write instead.

_MAX_VIEWS = 2_000  # devices that are examined for the names and values that the author may have meant
_NO_CONDITION = Remedy(("a selector is a condition, true or false: compare this value with what is wanted",), "")


def remedy_of(one: CompiledSelector, judged: QueryVerdicts, given: SelectorInputs) -> Remedy | None:
    """Return the remedy of one expression of a query, or None if no rule finds the mistake."""
    if one.error is None and not given.fleet.devices:
        return None
    if one.error is None and not _is_ours(one.selector):
        return None
    views = [group.view for group in judged.groups] or _views(given)
    earlier = judged.compiled[: next(n for n, other in enumerate(judged.compiled) if other is one)]
    reached = [view for view in views if all(_holds(other.selector, view) for other in earlier)]
    remedy = guarded_remedy(one.written.expression, given.engine(), reached or views)
    if remedy is None and one.error is not None and one.error.kind is CompileErrorKind.RESULT_TYPE:
        return _NO_CONDITION
    return remedy


def remedy_document(found: Remedy | None) -> Wire | None:
    """Return the document of a remedy."""
    return {"sentences": list(found.sentences), "better": found.better or None} if found else None


def _is_ours(selector: object) -> bool:
    """Return whether a selector was compiled by this driver's own engine; only this engine keeps a syntax tree."""
    return isinstance(selector, KubernetesSelector)


def _views(given: SelectorInputs) -> list[DeviceView]:
    return [prepare_device(device.wire, device.driver) for device in islice(given.fleet.devices, _MAX_VIEWS)]


def _holds(selector: KubernetesSelector | None, view: DeviceView) -> bool:
    if selector is None:
        return True
    try:
        return selector.matches_view(view)
    except SelectorRuntimeError:
        return False


# The parts that all documents about selectors have: the inputs, and each expression with the names no device has.


def unknowns(one: CompiledSelector, given: SelectorInputs) -> list[UnknownName]:
    """Return the unknown names: functions if the expression does not compile, otherwise attributes and capacities."""
    if one.error is not None:
        return suggest(one.error, declare(given.kubernetes, given.gates, given.environment))
    if isinstance(one.selector, KubernetesSelector) and given.fleet.devices:
        return unknown_names(one.selector.read_set, _views_by_names(given.fleet))
    return []


def views_of(fleet: Fleet) -> list[DeviceView]:
    """Convert all devices."""
    return [prepare_device(device.wire, device.driver) for device in fleet.devices]


def _views_by_names(fleet: Fleet) -> Iterable[DeviceView]:
    """Convert one device for each set of attribute and capacity names."""
    known: dict[Any, DeviceView] = {}
    for device in fleet.devices:
        key = device.driver, *(tuple(device.wire.get(field) or ()) for field in ("attributes", "capacity"))
        if key not in known or known[key].problem is not None:
            known[key] = prepare_device(device.wire, device.driver)
    return known.values()


def compiled_document(one: CompiledSelector, judged: QueryVerdicts, given: SelectorInputs) -> Wire:
    """Return the JSON document for one expression."""
    error, selector = one.error, one.selector
    return {
        "source": one.written.label,
        "file": one.written.document.origin if one.written.document else None,
        "path": list(one.written.steps),
        "position": position_document(given.position(one.written, error_offset(one))),
        "expression": one.written.expression,
        "compileError": error.text if error else None,
        "errorKind": str(error.kind) if error else None,
        "type": selector.output_type if selector else None,
        "maxCost": selector.max_cost if selector else None,
        "admissible": selector.admissible if selector else False,
        "refusal": one.refusal,
        "unknown": [{"kind": u.kind, "name": u.name, "suggestions": list(u.suggestions)} for u in unknowns(one, given)],
        "remedy": remedy_document(remedy_of(one, judged, given)),
    }


def error_offset(one: CompiledSelector) -> int:
    """Return the offset of the first fault of an expression that does not compile; 0 if it compiles, or names none."""
    position = one.error.position if one.error else None
    return offset_in(one.written.expression, *position) if position else 0


def position_document(position: Position | None) -> Wire | None:
    """Return the document of a position."""
    return {"line": position.line, "column": position.column} if position else None


def inputs_document(given: SelectorInputs) -> Wire:
    """Return the JSON document for the inputs: version, gates and devices."""
    return {
        "kubernetes": given.kubernetes,
        "verdicts": given.verdicts,
        "gates": given.gates,
        "environment": given.environment,
        "devices": given.fleet.size,
        "nodes": given.fleet.node_count,
        "sources": list(given.fleet.sources),
        "notes": list(given.fleet.notes),
    }


# The nearest misses of a query: devices that only one clause rejects.

_MAX = 3


@dataclass(frozen=True, slots=True)
class Miss:
    """Devices that fail only one clause. `reason` is short: "memory: 79Gi < 80Gi"."""

    label: str
    clause: str
    reason: str
    devices: int
    of: int

    @property
    def sentence(self) -> str:
        """Return the miss as a sentence."""
        verb = "matches" if self.of == 1 else "match"
        return f"{self.devices} of {self.of} device{'' if self.of == 1 else 's'} {verb} but for {self.reason}"


def misses(judged: QueryVerdicts) -> list[Miss]:
    """Find the nearest misses."""
    selectors = [one.selector for one in judged.compiled if isinstance(one.selector, KubernetesSelector)]
    total = sum(judged.size(group) for group in judged.groups)
    outside = [group for group in judged.groups if group.verdict.kind != MATCH]
    found: list[Miss] = []
    for step, selector in enumerate(selectors):
        others = selectors[:step] + selectors[step + 1 :]
        near = [group for group in outside if all(_accepts_group(other, group) for other in others)]
        for miss in nearest_misses(selector, [group.view for group in near]):
            count = sum(judged.size(near[position]) for position in miss.devices)
            found.append(Miss(judged.compiled[step].written.label, miss.clause, miss.reason, count, total))
    return sorted(found, key=lambda miss: -miss.devices)[:_MAX]


def miss_document(miss: Miss) -> Wire:
    """Return the document of a near miss."""
    return {
        "sentence": miss.sentence,
        "selector": miss.label,
        "clause": miss.clause,
        "reason": miss.reason,
        "devices": miss.devices,
    }


def _accepts_group(selector: KubernetesSelector, group: VerdictGroup) -> bool:
    try:
        return selector.matches_view(group.view)
    except SelectorRuntimeError:
        return False


# Which devices match, node by node.


def rows_of(judged: QueryVerdicts) -> list[tuple[list[str], dict[str, list[FleetDevice]]]]:
    """Return the nodes with their devices by verdict. If there are many nodes, equal ones are combined."""
    nodes = judged.by_node()
    if sum(1 + len(judged.like.get(node, ())) for node in nodes) <= FEW_NODES:
        return [([name], held) for node, held in nodes.items() for name in (node, *judged.like.get(node, ()))]
    found: dict[Any, tuple[list[str], dict[str, list[FleetDevice]]]] = {}
    errors = judged.errors()
    for node, held in nodes.items():
        key = tuple(
            tuple((one.driver, one.pool == node or one.pool, one.name, errors.get(id(one))) for one in held[kind])
            for kind in (MATCH, NO_MATCH, ABORT)
        )
        found.setdefault(key, ([], held))[0].extend((node, *judged.like.get(node, ())))
    return list(found.values())


def matches_document(judged: Sequence[QueryVerdicts], given: SelectorInputs, engine: Engine) -> OutputDocument:
    """Return the document of all queries."""
    content = {
        **inputs_document(given),
        "engine": engine.name,
        "caveat": engine.caveat,
        "queries": [_document(one, given) for one in judged],
    }
    return OutputDocument(DocumentKind.SELECTOR_MATCHES, content)


def _document(judged: QueryVerdicts, given: SelectorInputs) -> Wire:
    errors = judged.errors()

    def named(device: FleetDevice, node: str) -> Wire:
        pool = node if device.pool == device.node else device.pool
        found: Wire = {"driver": device.driver, "pool": pool, "device": device.name}
        if id(device) in errors:
            found["error"], found["selector"] = errors[id(device)]
        return found

    return {
        "query": judged.query.title,
        "usedBy": judged.query.users,
        "selectors": [compiled_document(one, judged, given) for one in judged.compiled],
        "counts": {kind: judged.count(kind) for kind in (MATCH, NO_MATCH, ABORT)},
        "nodes": [
            {
                "node": names[0],
                "like": names[1:],
                **{kind: [named(device, names[0]) for device in held[kind]] for kind in (MATCH, NO_MATCH, ABORT)},
            }
            for names, held in rows_of(judged)
        ],
        "nearestMisses": [] if judged.count(MATCH) else [miss_document(miss) for miss in misses(judged)],
    }
