"""The playground: one selector is evaluated on every device of the board.

In: a board and a `Trial`. Out: documents with the verdicts, the cost, the findings and what to write instead; with the
explanation for one device; and with completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import VERSIONS
from dra_driver.model.limits import CEL_COST
from dra_driver.model.wire import Wire
from dra_driver.selectors.checking.declarations import SELECTOR_GATES, declare
from dra_driver.selectors.completion import Completions
from dra_driver.selectors.engine import Environment
from dra_driver.selectors.lint.findings import LintFinding
from dra_driver.views.board.board import Board
from dra_driver.views.board.selector_filter import distinguishes_many_nodes
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.fleet.devices import Fleet, FleetDevice
from dra_driver.views.verdicts.documents import compiled_document, inputs_document, views_of
from dra_driver.views.verdicts.explanations import explanations_document
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.linting import lint_queries
from dra_driver.views.verdicts.matches import rows_of
from dra_driver.views.verdicts.misses import miss_document, misses
from dra_driver.views.verdicts.queries import Query, WrittenSelector
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, NO_MATCH, QueryVerdicts, judge

MAX_CHARACTERS = 10_240  # Source: Kubernetes API resource/v1 CELSelectorExpressionMaxLength
_MAX_ROWS = 60  # kinds of nodes that are shown
_MAX_DEVICES = 64  # devices of each verdict that are shown of a node
_MAX_VIEWS = 2_000  # devices whose names and values are offered as completions


@dataclass(frozen=True, slots=True)
class Trial:
    """An expression, and the version, gates and environment to evaluate it with; "" is the version of the board."""

    expression: str
    kubernetes: str = ""
    gates: tuple[tuple[str, bool], ...] = ()
    environment: Environment = "new"

    def given(self, board: Board, fleet: Fleet) -> SelectorInputs:
        """Return the inputs of the evaluation. Raises: InputError for an unknown version or gate, or a long text."""
        kubernetes = self.kubernetes or board.rules.kubernetes
        if kubernetes not in VERSIONS:
            raise InputError("kubernetes", f"Kubernetes {kubernetes[:20]!r} is not known", hint=", ".join(VERSIONS))
        if len(self.expression) > 2 * MAX_CHARACTERS:
            raise InputError("too-large", f"the expression is longer than {2 * MAX_CHARACTERS:,} characters")
        if unknown_objects := [name for name, _ in self.gates if name not in SELECTOR_GATES]:
            raise InputError("gate", f"no selector depends on gate {unknown_objects[0][:80]!r}")
        query = Query("selector", "selector", [WrittenSelector("-e", self.expression)])
        return SelectorInputs(fleet, [query], kubernetes, dict(self.gates), self.environment)


def try_selector(board: Board, trial: Trial) -> OutputDocument:
    """Return the verdicts on all devices, and the findings about the expression. Raises: InputError."""
    given = _shortened(trial.given(board, board.fleet()))
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
        "findings": [_finding(one) for one in (remarks.findings if remarks else ())],
        "better": remarks.better if remarks else None,
    }
    return OutputDocument(DocumentKind.SELECTOR_PLAY, content)


def _finding(one: LintFinding) -> Wire:
    about = {"rule": one.rule, "message": one.message, "clause": one.clause}
    return {**about, "fix": one.fix, "safe": one.is_safe, "effect": one.effect}


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


def explain_on(board: Board, trial: Trial, node: str, pool: str, name: str) -> OutputDocument:
    """Return why one device matches or not, with the value of each part of the expression. Raises: InputError."""
    found = [
        FleetDevice(node, one["spec"]["driver"], pool, wire)
        for one in board.slices_by_node().get(node, ())
        if one["spec"]["pool"]["name"] == pool
        for wire in one["spec"].get("devices") or ()
        if wire["name"] == name
    ]
    if not found:
        raise InputError("no-device", f"node {node} publishes no device {name}")
    fleet = Fleet(tuple(found[:1]), (board.source,))
    given = trial.given(board, fleet)
    judged = judge(given.queries, fleet, given.engine(), given.environment)
    return explanations_document(judged, given)


def completions(board: Board, trial: Trial, before: str) -> list[Wire]:
    """Return what may follow the text before the cursor. Raises: InputError."""
    fleet = board.fleet()
    some = Fleet(tuple(islice(fleet.devices, _MAX_VIEWS)))
    given = trial.given(board, some)
    declared = declare(given.kubernetes, given.gates, given.environment)
    found = Completions(views_of(some), declared).complete(before[-2_000:])
    return [plain(one) for one in found[:200]]
