"""Near misses: the devices that fail only one clause of a selector, and why.

In: a compiled selector and devices. Out: for each such clause, its devices and a short reason, such as
"memory: 79Gi < 80Gi".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.library.rendering import render
from dra_driver.selectors.syntax.excerpts import terms_below
from dra_driver.selectors.syntax.nodes import Call, Ident, Literal, Node, Select
from dra_driver.selectors.values.cancellation import check_cancelled
from dra_driver.selectors.values.values import CelError, CelQuantity

_NEGATED = {"_==_": "!=", "_!=_": "==", "_<_": ">=", "_<=_": ">", "_>_": "<=", "_>=_": "<"}
_CONJUNCTION = frozenset({"_&&_"})
_METHODS = {"isGreaterThan": "<=", "isLessThan": ">="}


@dataclass(frozen=True, slots=True)
class NearMiss:
    """Devices that fail one clause only. `reason` is short, such as "memory: 79Gi < 80Gi"."""

    clause: str
    reason: str
    devices: tuple[int, ...]


def nearest_misses(selector: KubernetesSelector, views: Sequence[DeviceView]) -> list[NearMiss]:
    """Find each clause that is the only one to exclude some devices; the clause with the most devices comes first."""
    terms = terms_below(selector.program.root, _CONJUNCTION)
    clauses = [term for term in terms if hasattr(term, "start")]  # nodes that macros made have no text
    found: dict[tuple[str, str], list[int]] = {}
    for position, view in enumerate(views):
        check_cancelled()
        if not selector.can_read(view):
            continue
        trace = selector.trace(view)
        failing = [clause for clause in clauses if trace.get(clause) is not True]
        if len(failing) == 1:
            clause = failing[0]
            text = selector.expression[clause.start : clause.end]
            found.setdefault((text, _reason(clause, trace, text)), []).append(position)
    misses = [NearMiss(text, reason, tuple(devices)) for (text, reason), devices in found.items()]
    return sorted(misses, key=lambda miss: (-len(miss.devices), miss.clause))


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
