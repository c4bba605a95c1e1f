"""Copies of trees, for macros that use an argument twice: no two places of a tree may share a node."""

from __future__ import annotations

from dra_driver.selectors.syntax.nodes import (
    Call,
    Comprehension,
    Entry,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
)

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
