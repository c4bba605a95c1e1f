"""A mistake that one rule found, and the expression in which rules look for mistakes.

In: an expression and its syntax tree, typed as far as its types are known. Out: what the rules share: paths of names,
literals, and the replacement of a node's text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dra_driver.selectors.remedies.names import KnownNames, NamePlace
from dra_driver.selectors.syntax.excerpts import all_nodes, replaced, text_of
from dra_driver.selectors.syntax.nodes import Call, Ident, Literal, Node, Select

_STEPS = frozenset({"_[_]", "_[?_]", "_?._"})


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: its lint rule, a sentence, the clause, and the whole expression with the mistake corrected.

    `about` is the unknown name (domain/name) or domain, if that is the mistake.
    """

    rule: str
    message: str
    clause: str
    text: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class WrittenExpression:
    """An expression that may have mistakes, as text and as a tree, with the names that devices have."""

    expression: str
    root: Node
    names: KnownNames

    def nodes(self) -> list[Node]:
        """Return all nodes that have text of their own."""
        return [node for node in all_nodes(self.root) if hasattr(node, "start")]

    def text(self, node: Node) -> str:
        """Return the text of a node."""
        return text_of(node, self.expression)

    def mistake(self, rule: str, message: str, node: Node, text: str, about: str = "") -> Mistake:
        """Return the mistake that is corrected by writing `text` in place of a node."""
        return Mistake(rule, message, self.text(node), replaced(self.expression, node, text), about)

    def kind(self, node: Node) -> str:
        """Return the kind of a node's value, by its type or by what devices have under its name; "" if unknown."""
        if type(node) is Literal:
            return _LITERALS.get(type(node.value), "")
        known = {"kubernetes.Quantity": "quantity", "kubernetes.Semver": "version", "string": "string"}
        by_type = known.get(node.type.long(), "")
        place = place_of(node)
        return by_type or (self.names.kind(place) if place else "")


_LITERALS = {str: "string", int: "number", float: "number", bool: "bool"}


def steps_of(node: Node) -> list[str] | None:
    """Return the path from `device` to a node, such as ["attributes", "gpu.nvidia.com", "type"], or None."""
    found: list[str] = []
    while True:
        if type(node) is Select:
            found.append(node.field)
            node = node.operand
        elif type(node) is Call and node.function in _STEPS and type(node.args[1]) is Literal:
            if type(node.args[1].value) is not str:
                return None
            found.append(node.args[1].value)
            node = node.args[0]
        else:
            return found[::-1] if type(node) is Ident and node.name == "device" else None


def place_of(node: Node) -> NamePlace | None:
    """Return the name that a node reads, or None if it reads no single name."""
    if type(node) is Call and node.function in {"orValue", "value"} and node.target is not None:
        node = node.target
    steps = steps_of(node)
    if steps is None or len(steps) != 3 or steps[0] not in {"attributes", "capacity"}:
        return None
    return NamePlace(*steps)


def quoted(text: str) -> str:
    """Return a text as a CEL literal."""
    return json.dumps(text, ensure_ascii=False)
