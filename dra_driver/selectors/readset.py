"""The parts of a device that an expression reads, found without evaluating it.

In: a checked tree. Out: a `ReadSet` of single attributes and capacities, whole domains, and whole maps. Devices that
agree on the read-set get the same verdict, so devices can be grouped by it. It also names the attributes that a
selector expects.

An access whose name is not a literal counts as reading the whole map.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.selectors.syntax.nodes import Call, Comprehension, Ident, Literal, Node, Select, children

_Path = tuple[str, ...]
_MAPS = frozenset({"attributes", "capacity"})
_STEPS = frozenset({"_[_]", "_[?_]", "_?._"})


@dataclass(frozen=True, slots=True)
class Read:
    """One thing that is read: a field of the device or, with `domain` and `name`, only a part of that map."""

    field: str
    domain: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ReadSet:
    """Everything that an expression reads. `guarded` are the names that it also tests for, or reads with a fallback."""

    reads: frozenset[Read]
    guarded: frozenset[Read]

    def covers(self, other: ReadSet) -> bool:
        """Return whether this set includes everything that `other` reads."""
        mine = {(read.field, read.domain, read.name) for read in self.reads}
        for read in other.reads:
            wider = {(read.field, None, None), (read.field, read.domain, None), (read.field, read.domain, read.name)}
            if not wider & mine:
                return False
        return True


def read_set(root: Node) -> ReadSet:
    """Return what a checked tree reads."""
    reader = _Reader()
    reader.visit(root)
    return ReadSet(frozenset(reader.reads), frozenset(reader.guarded))


class _Reader:
    __slots__ = ("_aliases", "guarded", "reads")

    def __init__(self) -> None:
        self._aliases: dict[str, list[_Path | None]] = {}
        self.reads: set[Read] = set()
        self.guarded: set[Read] = set()

    def visit(self, node: Node) -> None:
        """Visit a node whose whole value is used."""
        path = self._path(node)
        if path is not None:
            self._record(path, guarded=_is_guard(node))
            self._visit_keys(node)
            return
        if type(node) is Comprehension:
            self._comprehension(node)
            return
        if type(node) is Call and node.function == "@in":
            held = self._path(node.args[1])
            needle = node.args[0]
            if held is not None and 2 <= len(held) <= 3 and type(needle) is Literal and type(needle.value) is str:
                self._record((*held, needle.value), guarded=True)
                return
        for child in children(node):
            self.visit(child)

    def _visit_keys(self, node: Node) -> None:
        """Visit the expressions in the brackets of a chain."""
        while True:
            if type(node) is Select:
                node = node.operand
            elif type(node) is Call and node.function in _STEPS:
                if type(node.args[1]) is not Literal:
                    self.visit(node.args[1])
                node = node.args[0]
            else:
                return

    def _comprehension(self, node: Comprehension) -> None:
        if node.is_bind:
            alias = self._path(node.init)
            if alias is None:
                self.visit(node.init)
            self._scoped(node.accu, alias, node.result)
            return
        self.visit(node.range)
        self.visit(node.init)
        for name in (node.var, node.var2, node.accu):
            self._aliases.setdefault(name, []).append(None)
        for part in (node.cond, node.step, node.result):
            self.visit(part)
        for name in (node.var, node.var2, node.accu):
            self._aliases[name].pop()

    def _scoped(self, name: str, alias: _Path | None, node: Node) -> None:
        self._aliases.setdefault(name, []).append(alias)
        self.visit(node)
        self._aliases[name].pop()

    def _path(self, node: Node) -> _Path | None:
        """Return the path from `device` to the value of a chain, or None if the node is not such a chain."""
        steps: list[str | None] = []
        while True:
            if type(node) is Select and not node.declared:
                steps.append(node.field)
                node = node.operand
            elif type(node) is Call and node.function in _STEPS:
                key = node.args[1]
                steps.append(key.value if type(key) is Literal and type(key.value) is str else None)
                node = node.args[0]
            else:
                break
        root = self._root(node)
        if root is None:
            return None
        path = list(root)
        for step in reversed(steps):
            if step is None:
                break  # the key is unknown, so the whole map counts as read
            path.append(step)
        return tuple(path)

    def _root(self, node: Node) -> _Path | None:
        if type(node) is not Ident or node.declared:
            return None
        local = self._aliases.get(node.name)
        if local:
            return local[-1]
        return ("device",) if node.name == "device" else None

    def _record(self, path: _Path, *, guarded: bool) -> None:
        if len(path) == 1:
            self.reads |= {Read("driver"), Read("attributes"), Read("capacity"), Read("allowMultipleAllocations")}
            return
        field = path[1]
        if field not in _MAPS:
            self.reads.add(Read(field))
            return
        domain = path[2] if len(path) > 2 else None
        name = path[3] if len(path) > 3 else None
        # A test for a domain reads the whole domain, because an empty domain and an absent one differ.
        read = Read(field, domain, name)
        self.reads.add(read)
        if guarded and name is not None:
            self.guarded.add(read)


def _is_guard(node: Node) -> bool:
    """Return whether an access can't fail because of a missing name."""
    if type(node) is Select:
        return node.test
    return type(node) is Call and node.function in {"_[?_]", "_?._"}
