"""The tree of an expression.

The parser builds it, macros expand in it, and the checker writes types and candidate overloads into it. `offset` is
where messages point, in code points; `start` and `end` delimit the text. `visits` is the number of counted visits that
the deepest path below the node opens, the node included; it serves the depth limit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dra_driver.selectors.values.types import DYN, Type


class Node:
    """The attributes that all nodes share."""

    __slots__ = ("end", "offset", "start", "type", "visits")

    start: int  # the text of the node, in code points; unset in nodes that a macro made
    end: int
    offset: int
    type: Type
    visits: int


class Literal(Node):
    """A constant. The value is a run-time value (None is null)."""

    __slots__ = ("value",)

    def __init__(self, value: Any, offset: int) -> None:
        self.value = value
        self.offset = offset
        self.visits = 0
        self.type = DYN


class Ident(Node):
    """A name. `declared` is the resolved name of a type or a qualified identifier."""

    __slots__ = ("declared", "name")

    def __init__(self, name: str, offset: int) -> None:
        self.name = name
        self.offset = offset
        self.visits = 0
        self.type = DYN
        self.declared = ""


class Select(Node):
    """`operand.field`; with `test`, the presence test of has()."""

    __slots__ = ("declared", "field", "operand", "test")

    def __init__(self, operand: Node, field: str, offset: int, *, test: bool = False) -> None:
        self.operand = operand
        self.field = field
        self.offset = offset
        self.visits = operand.visits + 1
        self.type = DYN
        self.test = test
        self.declared = ""  # set if the whole chain names a type


class Call(Node):
    """A call or an operator. `overloads` are the ids of the candidates, in table order.

    `bound` are the parameters of the only candidate, set where the expression has types that were left open.
    """

    __slots__ = ("args", "bound", "function", "overloads", "target")

    def __init__(self, function: str, target: Node | None, args: list[Node], offset: int, visits: int = 0) -> None:
        self.function = function
        self.target = target
        self.args = args
        self.offset = offset
        self.visits = visits
        self.type = DYN
        self.overloads: tuple[str, ...] = ()
        self.bound: tuple[Type, ...] = ()


class ListLiteral(Node):
    """`[…]`; `optional` holds the indices of elements written with `?`."""

    __slots__ = ("elements", "optional")

    def __init__(self, elements: list[Node], optional: frozenset[int], offset: int, visits: int = 0) -> None:
        self.elements = elements
        self.optional = optional
        self.offset = offset
        self.visits = visits
        self.type = DYN


class Entry:
    """One `key: value` of a map literal, or one `field: value` of a message (where `key` is None)."""

    __slots__ = ("field", "key", "offset", "optional", "value")

    def __init__(self, key: Node | None, field: str, value: Node, offset: int, *, optional: bool) -> None:
        self.key = key
        self.field = field
        self.value = value
        self.offset = offset
        self.optional = optional


class MapLiteral(Node):
    """`{…}`."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Entry], offset: int, visits: int = 0) -> None:
        self.entries = entries
        self.offset = offset
        self.visits = visits
        self.type = DYN


class Message(Node):
    """`a.b.Name{…}`."""

    __slots__ = ("entries", "name")

    def __init__(self, name: str, entries: list[Entry], offset: int, visits: int = 0) -> None:
        self.name = name
        self.entries = entries
        self.offset = offset
        self.visits = visits
        self.type = DYN


class Comprehension(Node):
    """A fold, to which all loop macros and bindings expand. `macro` is the name of the macro in the text."""

    __slots__ = ("accu", "cond", "init", "macro", "range", "result", "step", "var", "var2")

    def __init__(
        self,
        macro: str,
        range_: Node,
        names: tuple[str, str, str],
        folds: tuple[Node, Node, Node, Node],
        offset: int,
    ) -> None:
        self.macro = macro
        self.range = range_
        self.var, self.var2, self.accu = names
        self.init, self.cond, self.step, self.result = folds
        self.offset = offset
        self.visits = 0
        self.type = DYN

    @property
    def is_bind(self) -> bool:
        """Whether this is a binding, which never loops and initialises its variable on first use."""
        return (
            type(self.range) is ListLiteral
            and not self.range.elements
            and type(self.cond) is Literal
            and self.cond.value is False
            and self.accu != "__result__"
        )


def balance(function: str, terms: list[Node], offsets: list[int], low: int, high: int) -> Node:
    """Build the balanced tree of a chain of `&&` or `||`."""
    middle = (low + high + 1) // 2
    left = terms[middle] if middle == low else balance(function, terms, offsets, low, middle - 1)
    right = terms[middle + 1] if middle == high else balance(function, terms, offsets, middle + 1, high)
    node = Call(function, None, [left, right], offsets[middle], max(left.visits, right.visits))
    node.start, node.end = left.start, right.end
    return node


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` if the node is only a chain of plain selections."""
    parts: list[str] = []
    while type(node) is Select:
        if node.test:
            return None
        parts.append(node.field)
        node = node.operand
    if type(node) is not Ident:
        return None
    parts.append(node.name)
    parts.reverse()
    return ".".join(parts)


def chain_terms(node: Call) -> list[Node]:
    """List the terms of a chain of one logical operator, left to right."""
    terms: list[Node] = []
    pending: list[Node] = [node]
    while pending:
        one = pending.pop()
        if type(one) is Call and one.function == node.function:
            pending.append(one.args[1])
            pending.append(one.args[0])
        else:
            terms.append(one)
    return terms


def height(root: Node) -> int:
    """Return the number of levels of a tree."""
    highest = 0
    pending = [(root, 1)]
    while pending:
        node, level = pending.pop()
        highest = max(highest, level)
        for child in children(node):
            pending.append((child, level + 1))  # noqa: PERF401  (plain appends are quicker for few children)
    return highest


def children(node: Node) -> list[Node]:
    """List the direct children, in the order of the text where they have one."""
    match node:
        case Select():
            return [node.operand]
        case Call():
            return ([node.target] if node.target is not None else []) + node.args
        case ListLiteral():
            return node.elements
        case MapLiteral() | Message():
            return [part for entry in node.entries for part in (entry.key, entry.value) if part is not None]
        case Comprehension():
            return [node.range, node.init, node.cond, node.step, node.result]
    return []


# Copies of trees, for macros that use an argument twice: no two places of a tree may share a node.

_MAX_COPIES = 20_000  # nodes that duplicated targets may add to one expression


class BadMacro(Exception):
    """An argument does not fit the macro."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


class Expansion:
    """The state that the macros of one expression share: how many nodes were duplicated so far."""

    __slots__ = ("copies",)

    def __init__(self) -> None:
        self.copies = 0


def copy(node: Node, expansion: Expansion) -> Node:
    """Copy a tree node by node: the checker writes into nodes, so no two places may share one.

    Raises:
        BadMacro: Duplication made the expression too large (our own limit; the server has none).
    """
    expansion.copies += 1
    if expansion.copies > _MAX_COPIES:
        raise BadMacro(node.offset, f"expression grows by more than {_MAX_COPIES} nodes when its macros are expanded")
    copied = _copy(node, expansion)
    copied.visits = node.visits
    return copied


def _copy(node: Node, expansion: Expansion) -> Node:
    match node:
        case Literal():
            return Literal(node.value, node.offset)
        case Ident():
            return Ident(node.name, node.offset)
        case Select():
            return Select(copy(node.operand, expansion), node.field, node.offset, test=node.test)
        case Call():
            target = copy(node.target, expansion) if node.target is not None else None
            return Call(node.function, target, _copies(node.args, expansion), node.offset)
        case ListLiteral():
            return ListLiteral(_copies(node.elements, expansion), node.optional, node.offset)
        case MapLiteral():
            return MapLiteral(_copy_entries(node.entries, expansion), node.offset)
        case Message():
            return Message(node.name, _copy_entries(node.entries, expansion), node.offset)
        case Comprehension():
            names = (node.var, node.var2, node.accu)
            init, cond, step, result = _copies([node.init, node.cond, node.step, node.result], expansion)
            range_ = copy(node.range, expansion)
            return Comprehension(node.macro, range_, names, (init, cond, step, result), node.offset)
    raise TypeError(type(node).__name__)


def _copies(nodes: list[Node], expansion: Expansion) -> list[Node]:
    copies = []
    for node in nodes:
        copies.append(copy(node, expansion))  # noqa: PERF401  (no extra frame)
    return copies


def _copy_entries(entries: list[Entry], expansion: Expansion) -> list[Entry]:
    copies = []
    for entry in entries:
        key = copy(entry.key, expansion) if entry.key is not None else None
        value = copy(entry.value, expansion)
        copies.append(Entry(key, entry.field, value, entry.offset, optional=entry.optional))
    return copies


# Excerpts of an expression: the text of a node, and the expression with that text replaced.


def text_of(node: Node, expression: str) -> str:
    """Return the text of a node, or "" for a node that a macro made."""
    return expression[node.start : node.end] if hasattr(node, "start") else ""


def replaced(expression: str, node: Node, text: str) -> str:
    """Return the expression with the text of a node replaced."""
    return expression[: node.start] + text + expression[node.end :]


def all_nodes(root: Node) -> list[Node]:
    """List all nodes of a tree, in source order of their roots."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        found.append(node)
        pending.extend(reversed(children(node)))
    return found


def terms_below(root: Node, operators: Collection[str]) -> list[Node]:
    """List the terms that the outermost chains of these logical operators join, looking through bindings."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if type(node) is Comprehension and node.is_bind:
            pending.append(node.result)
        elif type(node) is Call and node.function in operators:
            pending.extend(reversed(node.args))
        else:
            found.append(node)
    return found
