"""What an editor shows about the selectors of a text that is being written.

In: the text of a manifest, of JSON or of a chart's values, finished or not. Out: faults as `cel lint` finds them, with
the edits that mend them; candidates for what is being typed; type, cost and matches of what the cursor is on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import yaml

from dra_driver.base.errors import CEL_COST, InputError
from dra_driver.selectors.advice.completion import Candidate, Completions
from dra_driver.selectors.advice.findings import LintSeverity
from dra_driver.selectors.advice.mistakes import place_of
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.kubernetes import KubernetesSelector
from dra_driver.selectors.parse.tree import Node, all_nodes, text_of
from dra_driver.selectors.values.values import EvaluationCancelledError, cancellable
from dra_driver.tools.cel.linting import (
    ExpressionChange,
    SelectorFault,
    TextEdit,
    expression_edits,
    lint_queries,
    selector_faults,
)
from dra_driver.tools.cel.places import ExpressionPlace, expression_places
from dra_driver.tools.cel.verdicts import ABORT, MATCH, QueryVerdicts, judge, remedy_of, views_of
from dra_driver.tools.world.documents import parse_documents, shown
from dra_driver.tools.world.fields import number, plural
from dra_driver.tools.world.fleet import Fleet
from dra_driver.tools.world.positions import FilePositions
from dra_driver.tools.world.queries import (
    CLASS,
    Query,
    SelectorInputs,
    WrittenSelector,
    queries_of,
    refuse_bad_configs,
)
from dra_driver.tools.world.shapes import ShapeChecker, checked

MAX_TEXT = 1 << 20  # in characters of a text that is checked
_MAX_SELECTORS = 200
_MAX_SECONDS = 5.0
_MAX_VIEWS = 5_000  # devices whose names and values are offered
_ALONE = "selector"  # the label of an expression whose object is not known
_NO_OBJECT = frozenset({"input.not-an-object", "input.no-known-kind"})  # a chart's values, and what is not ours
_TOO_MUCH = "too much to check while typing: run dra-driver cel lint on the file"


@dataclass(frozen=True, slots=True)
class TextFault:
    """A fault at its place in a text, with the edits of which any one mends it."""

    start: int
    end: int
    severity: LintSeverity
    rule: str
    message: str
    fixes: tuple[TextEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class HoverText:
    """What is shown, as Markdown, about a part of a text."""

    start: int
    end: int
    markdown: str


@dataclass(frozen=True, slots=True)
class OfferedEdit:
    """A candidate, and the edit of the text that takes it."""

    candidate: Candidate
    edit: TextEdit


class SelectorEditor:
    """Answers about texts, with the devices, classes and version of `given`."""

    def __init__(self, given: SelectorInputs) -> None:
        self._given = given
        self._engine = given.engine()

    @cached_property
    def _completions(self) -> Completions:
        given = self._given
        some = Fleet(tuple(islice(given.fleet.devices, _MAX_VIEWS)))
        return Completions(views_of(some), declare(given.kubernetes, given.gates, given.environment))

    def faults(self, text: str, origin: str) -> list[TextFault]:
        """Return the faults of all selectors in a text, in their order. `origin` names the text in messages."""
        if len(text) > MAX_TEXT:
            return [TextFault(0, 0, LintSeverity.NOTE, "too-much", _TOO_MUCH)]
        places = expression_places(text)
        if len(places) > _MAX_SELECTORS:
            return [TextFault(places[0].scalar.start, places[0].scalar.end, LintSeverity.NOTE, "too-much", _TOO_MUCH)]
        faults: dict[TextFault, None] = {}  # a class that several requests name has its fault for each of them
        try:
            with cancellable(_deadline()):
                for fault in _Check(self._given, text, origin, places).faults() if places else ():
                    faults[fault] = None
        except EvaluationCancelledError:
            faults[TextFault(0, 0, LintSeverity.NOTE, "too-much", _TOO_MUCH)] = None
        return sorted(faults, key=lambda fault: (fault.start, fault.rule))

    def complete(self, text: str, index: int) -> list[OfferedEdit]:
        """Return what may follow at the cursor; nothing where no expression is."""
        place = _place_at(text, index)
        if place is None:
            return []
        before = place.text_before(index)
        return [_offer(candidate, place, text, index) for candidate in self._completions.complete(before)]

    def hover(self, text: str, index: int) -> HoverText | None:
        """Return the type of what the cursor is on, and the cost and the matches of its selector; None if it fails."""
        place = _place_at(text, index)
        if place is None:
            return None
        judged = _judged_alone(place, self._given)
        selector = judged.compiled[0].selector
        if selector is None:
            return None
        node = _innermost(selector, place.offset_at(index))
        start, end = place.index_of(node.start), place.index_of(node.end - 1) + 1
        try:
            with cancellable(_deadline()):
                lines = [self._type_line(node, selector), self._selector_line(judged, selector)]
        except EvaluationCancelledError:
            lines = [_TOO_MUCH]
        return HoverText(start, end, "\n\n".join(lines))

    def _type_line(self, node: Node, selector: KubernetesSelector) -> str:
        text = " ".join(text_of(node, selector.expression).split())
        fence = "``" if "`" in text else "`"
        read = place_of(node)
        known = self._completions.meaning_of(read.field, read.domain, read.name) if read else ""
        return f"{fence}{text}{fence}: {known or node.type.long()}"

    def _selector_line(self, judged: QueryVerdicts, selector: KubernetesSelector) -> str:
        fleet = self._given.fleet
        failing = judged.count(ABORT)
        aborts = f", and {failing} of them would abort scheduling" if failing else ""
        matches = f"{judged.count(MATCH)} of {plural(fleet.size, 'device')} of {', '.join(fleet.sources)}{aborts}"
        return f"The selector matches {matches}; its worst-case cost is {number(selector.max_cost)} of {CEL_COST:,}."


def _deadline() -> Any:
    until = time.monotonic() + _MAX_SECONDS

    def check() -> None:
        if time.monotonic() > until:
            raise EvaluationCancelledError

    return check


def _place_at(text: str, index: int) -> ExpressionPlace | None:
    if len(text) > MAX_TEXT:
        return None
    return next((place for place in expression_places(text) if place.holds(text, index)), None)


def _innermost(selector: KubernetesSelector, offset: int) -> Node:
    """Return the smallest part of an expression around an offset, or the whole."""
    root = selector.program.root
    around = [node for node in all_nodes(root) if hasattr(node, "start") and node.start <= offset < node.end]
    return min(around, key=lambda node: node.end - node.start, default=root)


def _judged_alone(place: ExpressionPlace, given: SelectorInputs) -> QueryVerdicts:
    query = Query(_ALONE, _ALONE, [WrittenSelector(_ALONE, place.expression)])
    (judged,) = judge([query], given.fleet, given.engine(), given.environment)
    return judged


def _offer(candidate: Candidate, place: ExpressionPlace, text: str, index: int) -> OfferedEdit:
    """Return the edit that takes a candidate, quoted as its scalar is; brackets that already follow are replaced."""
    new = candidate.text
    if place.scalar.style == '"':
        new = json.dumps(new, ensure_ascii=False)[1:-1]
    elif place.scalar.style == "'":
        new = new.replace("'", "''")
    closing = re.search(r"""(?:\\?"|''|')\]$|\($""", new)
    follows = closing is not None and text.startswith(closing[0], index)
    end = index + (len(closing[0]) if closing and follows else 0)
    return OfferedEdit(candidate, TextEdit(index - candidate.replaces, end, new))


# The faults of one text.


class _Check:
    def __init__(self, given: SelectorInputs, text: str, origin: str, places: Sequence[ExpressionPlace]) -> None:
        self._given = replace(given, positions=FilePositions())
        self._text = text
        self._origin = origin
        self._places = {(place.number, place.steps): place for place in places}
        self._all = places

    def faults(self) -> Iterator[TextFault]:
        """Yield the faults of the objects; what no object can tell is judged alone."""
        covered: set[Any] = set()
        try:
            queries = self._queries()
            covered = {_key_of(written) for query in queries for written in query.selectors}
            yield from self._judged(queries)
        except InputError as fault:
            if fault.code not in _NO_OBJECT:
                yield self._fault_of_input(fault)
        for place in self._all:
            if (place.number, place.steps) not in covered or place.number is None:
                yield from self._alone(place)

    def _queries(self) -> list[Query]:
        documents = list(parse_documents(self._text, self._origin))
        checker = ShapeChecker()
        for document in documents:
            checked(document, checker)
            refuse_bad_configs(document, document.wire)
        classes = self._given.classes.beside([document for document in documents if document.kind == CLASS])
        return queries_of((), documents, classes, None)

    def _judged(self, queries: list[Query]) -> Iterator[TextFault]:
        given = replace(self._given, queries=queries)
        judged = judge(queries, given.fleet, given.engine(), given.environment)
        by_selector = {id(one): query for query in judged for one in query.compiled}
        for fault in selector_faults(judged, list(lint_queries(judged, given, frozenset()))):
            place = self._places.get(_key_of(fault.compiled.written))
            if fault.compiled.written.document is not None and place is not None:
                yield self._placed(fault, place, by_selector[id(fault.compiled)])

    def _alone(self, place: ExpressionPlace) -> Iterator[TextFault]:
        judged = _judged_alone(place, self._given)
        for fault in selector_faults([judged], list(lint_queries([judged], self._given, frozenset()))):
            yield self._placed(fault, place, judged)

    def _placed(self, fault: SelectorFault, place: ExpressionPlace, judged: QueryVerdicts) -> TextFault:
        """Return a fault with its range and its edits; a compile error with what to write instead."""
        message, better = fault.message, [fault.fix]
        remedy = remedy_of(fault.compiled, judged, self._given) if fault.compiled.error is not None else None
        if remedy is not None:
            message = "\n".join([message, *remedy.sentences])
            better = [remedy.better]
        start = place.index_of(fault.start)
        last = fault.start + len(fault.clause) - 1 if self._is_at(fault, place) else len(place.expression.rstrip()) - 1
        end = max(place.index_of(max(last, fault.start)) + 1, start)
        fixes = [edit for text in better if text for edit in self._edits(place, text)]
        return TextFault(start, end, fault.severity, fault.rule, message, tuple(fixes))

    def _is_at(self, fault: SelectorFault, place: ExpressionPlace) -> bool:
        return bool(fault.clause) and place.expression.startswith(fault.clause, fault.start)

    def _edits(self, place: ExpressionPlace, expression: str) -> list[TextEdit]:
        """Return the edit that writes another expression; none if the text can't be read or would change elsewhere."""
        if place.number is None:
            return []
        try:
            change = ExpressionChange(place.number, place.steps, expression)
            return expression_edits(self._text, self._origin, [change]) or []
        except (InputError, yaml.YAMLError):  # YAML's two readers do not understand the same texts
            return []

    def _fault_of_input(self, fault: InputError) -> TextFault:
        """Return why the objects can't be read, at the place that the message names, or at the first line."""
        placed = re.match(rf"{re.escape(shown(self._origin))}:(?:(\d+):(\d+))?:? ?", fault.message)
        message = fault.message[placed.end() :] if placed else fault.message
        line, column = (int(placed[1]), int(placed[2])) if placed and placed[1] else (1, 1)
        lines = self._text.split("\n")
        start = sum(len(row) + 1 for row in lines[: line - 1]) + column - 1
        end = start + len(lines[line - 1][column - 1 :]) if line <= len(lines) else start
        text = f"{message}\n{fault.hint}" if fault.hint else message
        return TextFault(start, end, LintSeverity.ERROR, fault.code, text)


def _key_of(written: WrittenSelector) -> tuple[int | None, tuple[str | int, ...]]:
    return (written.document.number, written.steps) if written.document else (None, ())
