"""Why a device matches, does not match, or fails.

In: a compiled selector and a device. Out: the expression as a tree with the value of every part, and the part that
decides. Every part is evaluated, even where the verdict does not need it; the verdict itself comes from the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.functions.formats import render
from dra_driver.selectors.kubernetes import KubernetesSelector
from dra_driver.selectors.parse.tree import Call, Comprehension, Ident, Literal, Node, Select, chain_terms, children
from dra_driver.selectors.values.types import type_name
from dra_driver.selectors.values.values import CelAbort, CelError


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


def explain(selector: KubernetesSelector, view: DeviceView) -> Explanation:
    """Explain the verdict on one device."""
    match, error = _verdict(selector, view)
    if not selector.can_read(view):
        return Explanation(match, error, None, None)
    trace = selector.trace(view)
    deciding = _deciding(selector.program.root, trace)
    builder = _Tree(selector.expression, trace, deciding)
    tree = builder.build(selector.program.root)
    return Explanation(match, error, tree, builder.decisive)


def _verdict(selector: KubernetesSelector, view: DeviceView) -> tuple[bool | None, str | None]:
    try:
        return selector.matches_view(view), None
    except SelectorRuntimeError as error:
        return None, error.text


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
            type_name(value) if known else None,
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
