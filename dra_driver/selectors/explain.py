"""Why a device matches, does not match, or fails.

In: a compiled selector and devices. Out: the expression as a tree with the value of every part, the part that
decides, and, for many devices, the nearest misses. Every part is evaluated, even where the verdict does not need it;
the verdict itself comes from the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_engine import KubernetesSelector
from dra_driver.selectors.library.rendering import kind_of, render
from dra_driver.selectors.syntax.nodes import Call, Comprehension, Ident, Literal, Node, Select, chain_terms, children
from dra_driver.selectors.values.cancellation import check_cancelled
from dra_driver.selectors.values.values import CelAbort, CelError, CelQuantity

_NEGATED = {"_==_": "!=", "_!=_": "==", "_<_": ">=", "_<=_": ">", "_>_": "<=", "_>=_": "<"}
_METHODS = {"isGreaterThan": "<=", "isLessThan": ">="}


@dataclass(frozen=True, slots=True)
class ExpressionPart:
    """One part of the expression on one device. `value` is None where the part failed or was never reached."""

    text: str
    start: int
    end: int
    value: str | None
    type: str | None
    error: str | None
    decides: bool
    parts: tuple[ExpressionPart, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on one device. `match` is None if the evaluation failed; `error` then says why."""

    match: bool | None
    error: str | None
    tree: ExpressionPart | None
    deciding: ExpressionPart | None


@dataclass(frozen=True, slots=True)
class NearMiss:
    """Devices that fail one clause only. `reason` is short, such as "memory: 79Gi < 80Gi"."""

    clause: str
    reason: str
    devices: tuple[int, ...]


def explain(selector: KubernetesSelector, view: DeviceView) -> Explanation:
    """Explain the verdict on one device."""
    match, error = _verdict(selector, view)
    if not _is_readable(selector, view):
        return Explanation(match, error, None, None)
    trace = selector.trace(view)
    deciding = _deciding(selector.program.root, trace)
    builder = _Tree(selector.expression, trace, deciding)
    tree = builder.build(selector.program.root)
    return Explanation(match, error, tree, builder.decisive)


def nearest_misses(selector: KubernetesSelector, views: Sequence[DeviceView]) -> list[NearMiss]:
    """Find each clause that is the only one to exclude some devices; the clause with the most devices comes first."""
    clauses = _clauses(selector.program.root)
    found: dict[tuple[str, str], list[int]] = {}
    for position, view in enumerate(views):
        check_cancelled()
        if not _is_readable(selector, view):
            continue
        trace = selector.trace(view)
        failing = [clause for clause in clauses if trace.get(clause) is not True]
        if len(failing) == 1:
            clause = failing[0]
            text = selector.expression[clause.start : clause.end]
            found.setdefault((text, _reason(clause, trace, text)), []).append(position)
    misses = [NearMiss(text, reason, tuple(devices)) for (text, reason), devices in found.items()]
    return sorted(misses, key=lambda miss: (-len(miss.devices), miss.clause))


def _verdict(selector: KubernetesSelector, view: DeviceView) -> tuple[bool | None, str | None]:
    try:
        return selector.matches_view(view), None
    except SelectorRuntimeError as error:
        return None, error.text


def _is_readable(selector: KubernetesSelector, view: DeviceView) -> bool:
    """Return whether the server could convert the device."""
    try:
        selector.check_view(view)
    except SelectorRuntimeError:
        return False
    return True


def _has_text(node: Node) -> bool:
    return hasattr(node, "start")


class _Tree:
    """Builds the tree of parts, without the nodes that macros made."""

    def __init__(self, expression: str, trace: dict[Node, Any], deciding: Node | None) -> None:
        self._expression = expression
        self._trace = trace
        self._deciding = deciding
        self.decisive: ExpressionPart | None = None

    def build(self, node: Node) -> ExpressionPart:
        value = self._trace.get(node, _Missing)
        error = value.text if isinstance(value, CelError | CelAbort) else None
        known = value is not _Missing and error is None
        part = ExpressionPart(
            self._expression[node.start : node.end],
            node.start,
            node.end,
            render(value) if known else None,
            kind_of(value) if known else None,
            error,
            node is self._deciding,
            tuple([self.build(child) for child in _written(node)]),
        )
        if part.decides:
            self.decisive = part
        return part


class _Missing:
    """Marks a part that was never reached."""


def _written(node: Node) -> list[Node]:
    """List the nearest parts below a node that have text of their own, except literals, which explain themselves."""
    if _is_path(node):
        return []
    found: list[Node] = []
    logical = type(node) is Call and node.function in {"_&&_", "_||_"}
    pending = list(reversed(chain_terms(node) if logical else children(node)))  # type: ignore[arg-type]
    while pending:
        child = pending.pop()
        if not _has_text(child):
            pending.extend(reversed(children(child)))
        elif type(child) is not Literal and not (type(child) is Ident and child.declared):
            found.append(child)
    return found


def _is_path(node: Node) -> bool:
    """Return whether a node is a chain of plain accesses; one line explains such a chain."""
    while True:
        if type(node) is Select:
            node = node.operand
        elif type(node) is Call and node.function in {"_[_]", "_[?_]", "_?._"} and type(node.args[1]) is Literal:
            node = node.args[0]
        else:
            return type(node) is Ident


def _deciding(node: Node, trace: dict[Node, Any]) -> Node | None:
    """Find the clause that decides the value of a node: descend as long as a single operand decides."""
    while True:
        value = trace.get(node)
        if type(node) is Comprehension and node.is_bind:
            node = node.result
        elif type(node) is Call and node.function in {"_&&_", "_||_"}:
            chosen = _decider(node, value, trace)
            if chosen is None:
                return node if _has_text(node) else None
            node = chosen
        elif type(node) is Call and node.function == "_?_:_" and trace.get(node.args[0]) in (True, False):
            node = node.args[1] if trace.get(node.args[0]) else node.args[2]
        else:
            return node if _has_text(node) else None


def _decider(node: Call, value: Any, trace: dict[Node, Any]) -> Node | None:
    decisive = node.function == "_||_"
    for operand in node.args:
        if value is decisive and trace.get(operand) is decisive:
            return operand
        if isinstance(value, CelError) and type(trace.get(operand)) is not bool:
            return operand
    return None


def _clauses(root: Node) -> list[Node]:
    """List the terms of the outermost conjunction."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if type(node) is Comprehension and node.is_bind:
            pending.append(node.result)
        elif type(node) is Call and node.function == "_&&_":
            pending.extend(reversed(node.args))
        elif _has_text(node):
            found.append(node)
    return found


def _reason(clause: Node, trace: dict[Node, Any], text: str) -> str:
    """Describe in a few words why a clause does not hold."""
    value = trace.get(clause)
    if isinstance(value, CelError):
        missing = value.text.removeprefix("no such key: ")
        return f"{missing}: missing" if missing != value.text else f"{text}: {value.text}"
    if type(clause) is Select and clause.test:
        return f"{clause.field}: missing"
    if type(clause) is Call:
        compared = _comparison(clause, trace) or _value_test(clause, trace)
        if compared is not None:
            return compared
    name = _name(clause)
    return f"{name}: {render(value)}" if name else f"{text}: {render(value)}"


def _comparison(clause: Call, trace: dict[Node, Any]) -> str | None:
    """Describe a failed comparison as "name: actual relation wanted"."""
    if clause.function in _METHODS and clause.target is not None:
        return _described(clause.target, _METHODS[clause.function], clause.args[0], trace)
    if clause.function == "@in":
        return _described(clause.args[0], "not in", clause.args[1], trace)
    relation = _NEGATED.get(clause.function)
    if relation is None:
        return None
    left, right = clause.args
    if type(left) is Call and left.function == "compareTo" and type(right) is Literal and right.value == 0:
        assert left.target is not None  # noqa: S101  (compareTo is a method)
        return _described(left.target, relation, left.args[0], trace)
    return _described(left, relation, right, trace)


def _value_test(clause: Call, trace: dict[Node, Any]) -> str | None:
    """Describe a failed test of one value: "name: actual fails startsWith("H")"."""
    name = _name(clause.target) if clause.target is not None else None
    if name is None or clause.target not in trace or any(arg not in trace for arg in clause.args):
        return None
    wanted = ", ".join([render(trace[arg]) for arg in clause.args])
    return f"{name}: {render(trace[clause.target])} fails {clause.function}({wanted})"


def _described(subject: Node, relation: str, wanted: Node, trace: dict[Node, Any]) -> str | None:
    name = _name(subject)
    if name is None or subject not in trace or wanted not in trace:
        return None
    return f"{name}: {_text_of_value(trace[subject])} {relation} {_text_of_value(trace[wanted])}"


def _text_of_value(value: Any) -> str:
    return value.number.readable if type(value) is CelQuantity else render(value)


def _name(node: Node) -> str | None:
    """Find the last name of an access chain, looking through methods and fallbacks."""
    while True:
        if type(node) is Select:
            return node.field
        if type(node) is Call and node.function in {"_[_]", "_[?_]", "_?._"}:
            key = node.args[1]
            return key.value if type(key) is Literal and type(key.value) is str else None
        if type(node) is Call and node.target is not None:
            node = node.target
        else:
            return node.name if type(node) is Ident else None
