"""The playground: one selector is evaluated on every device of a fleet.

In: a fleet and a `Trial`. Out: documents: the verdicts with the findings of lint, why one device matches or not, and
completions. It needs no more than the standard library and PyYAML, because the site's playground runs it in a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dra_driver.base.errors import CEL_COST, InputError
from dra_driver.base.versions import VERSIONS
from dra_driver.base.wire import Wire
from dra_driver.selectors.advice.completion import Completions
from dra_driver.selectors.check.declarations import SELECTOR_GATES, declare
from dra_driver.selectors.engine import Environment, SelectorCompileError
from dra_driver.tools.cel.linting import explanations_document, finding_document, lint_queries
from dra_driver.tools.cel.verdicts import (
    ABORT,
    MATCH,
    NO_MATCH,
    QueryVerdicts,
    compiled_document,
    inputs_document,
    judge,
    miss_document,
    misses,
    rows_of,
    views_of,
)
from dra_driver.tools.world.access import DocumentKind, OutputDocument, plain
from dra_driver.tools.world.fleet import Fleet, FleetDevice
from dra_driver.tools.world.queries import Query, SelectorInputs, WrittenSelector

MAX_CHARACTERS = 10_240  # Source: Kubernetes API resource/v1 CELSelectorExpressionMaxLength
MAX_SINGLE = 4_000  # the largest fleet, in devices, in which every device is evaluated
_MAX_ROWS = 60  # kinds of nodes that are shown
_MAX_DEVICES = 64  # devices of each verdict that are shown of a node
_MAX_VIEWS = 2_000  # devices whose names and values are offered as completions


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression, and the version of Kubernetes, the gates and the environment to evaluate it with."""

    expression: str
    kubernetes: str
    gates: tuple[tuple[str, bool], ...] = ()
    environment: Environment = "new"

    def given(self, fleet: Fleet) -> SelectorInputs:
        """Return the inputs of the evaluation. Raises: InputError for an unknown version or gate, or a long text."""
        kubernetes = self.kubernetes
        if kubernetes not in VERSIONS:
            raise InputError("kubernetes", f"Kubernetes {kubernetes[:20]!r} is not known", hint=", ".join(VERSIONS))
        if len(self.expression) > 2 * MAX_CHARACTERS:
            raise InputError("too-large", f"the expression is longer than {2 * MAX_CHARACTERS:,} characters")
        if unknown_objects := [name for name, _ in self.gates if name not in SELECTOR_GATES]:
            raise InputError("gate", f"no selector depends on gate {unknown_objects[0][:80]!r}")
        query = Query("selector", "selector", [WrittenSelector("-e", self.expression)])
        return SelectorInputs(fleet, [query], kubernetes, dict(self.gates), self.environment)


def try_selector(fleet: Fleet, trial: Trial) -> OutputDocument:
    """Return the verdicts on all devices, and the findings about the expression. Raises: InputError."""
    given = _shortened(trial.given(fleet))
    [judged] = judge(given.queries, given.fleet, given.engine(), given.environment)
    one = judged.compiled[0]
    remarks = next(lint_queries([judged], given, frozenset()), None)
    position = one.error.position if one.error else None
    rows = rows_of(judged)
    content = {
        **inputs_document(given),
        "selector": compiled_document(one, judged, given),
        "position": {"line": position[0], "column": position[1]} if position else None,
        "costLimit": CEL_COST,
        "counts": {kind: judged.count(kind) for kind in (MATCH, NO_MATCH, ABORT)},
        "rows": [_row(judged, names, held) for names, held in rows[:_MAX_ROWS]],
        "moreRows": max(0, len(rows) - _MAX_ROWS),
        "nearestMisses": [] if judged.count(MATCH) else [miss_document(miss) for miss in misses(judged)],
        "findings": [
            finding_document(finding, one.written, given) for finding in (remarks.findings if remarks else ())
        ],
        "better": remarks.better if remarks else None,
    }
    return OutputDocument(DocumentKind.SELECTOR_PLAY, content)


def distinguishes_many_nodes(given: SelectorInputs) -> bool:
    """Return whether a selector reads values that differ between nodes, in a fleet with too many devices for that."""
    fleet, expression = given.fleet, given.queries[0].selectors[0].expression
    if fleet.size <= MAX_SINGLE or not fleet.repeats:
        return False
    try:
        reads = given.engine().compile(expression, environment=given.environment).read_set.reads
    except SelectorCompileError:
        return False
    return any(shape.varies_in(reads) for one in fleet.repeats for shape in one.shapes)


def _shortened(given: SelectorInputs) -> SelectorInputs:
    """Return inputs that can be evaluated in time, with one node of each kind if all nodes would take too long."""
    fleet = given.fleet
    if not distinguishes_many_nodes(given):
        return given
    few = Fleet(fleet.devices, fleet.sources, fleet.notes)
    note = f"it reads values that differ between nodes: judged on {few.node_count:,} of {fleet.node_count:,} nodes"
    return replace(given, fleet=replace(few, notes=(*few.notes, note)))


def _row(judged: QueryVerdicts, names: Sequence[str], held: dict[str, list[FleetDevice]]) -> Wire:
    """Return the verdicts on the devices of a node, and how many other nodes have the same verdicts."""
    errors = judged.errors()

    def named(device: FleetDevice) -> Wire:
        error, _ = errors.get(id(device), (None, None))
        return {"driver": device.driver, "pool": device.pool, "device": device.name, "error": error}

    return {
        "node": names[0],
        "like": len(names) - 1,
        "counts": {kind: len(held[kind]) for kind in (MATCH, NO_MATCH, ABORT)},
        **{kind: [named(one) for one in held[kind][:_MAX_DEVICES]] for kind in (MATCH, NO_MATCH, ABORT)},
    }


def explain_on(device: FleetDevice, source: str, trial: Trial) -> OutputDocument:
    """Return why one device matches or not, with the value of each part of the expression. Raises: InputError."""
    given = trial.given(Fleet((device,), (source,)))
    judged = judge(given.queries, given.fleet, given.engine(), given.environment)
    return explanations_document(judged, given)


def completions(fleet: Fleet, trial: Trial, before: str) -> list[Wire]:
    """Return what may follow the text before the cursor. Raises: InputError."""
    some = Fleet(tuple(islice(fleet.devices, _MAX_VIEWS)))
    given = trial.given(some)
    declared = declare(given.kubernetes, given.gates, given.environment)
    found = Completions(views_of(some), declared).complete(before[-2_000:])
    return [plain(one) for one in found[:200]]
