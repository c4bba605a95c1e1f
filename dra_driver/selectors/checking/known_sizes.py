"""Known sizes: the sizes of the values of nodes and of local variables, as far as they are known.

Out: for each node, its path from the device, its size and, for a container, the sizes of its entries.

Source: cel-go's checker.Cost (see `estimate.py`).
"""

from __future__ import annotations

from dra_driver.selectors.checking.estimate_values import Operand
from dra_driver.selectors.checking.sizes import (
    INDICES,
    ITEMS,
    KEYS,
    NO_PATH,
    ONE,
    UNKNOWN,
    VALUES,
    Path,
    Size,
    device_size,
    union,
)
from dra_driver.selectors.syntax.nodes import (
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
)
from dra_driver.selectors.values.types import Type, is_optional

_SCALARS = frozenset({"bool", "int", "uint", "double", "timestamp", "duration"})
_ACCUMULATORS = frozenset({"@result", "__result__"})

Entry = tuple[str, Size, Size]  # kind of the container, size of a key, size of a value


class Local:
    """What is known about a local variable."""

    __slots__ = ("entry", "path", "size")

    def __init__(self, path: Path, size: Size | None, entry: Entry | None) -> None:
        self.path = path
        self.size = size
        self.entry = entry


class KnownSizes:
    """The part of the estimate that keeps sizes and paths."""

    __slots__ = ("_entries", "_locals", "_paths", "_sizes")

    def __init__(self) -> None:
        self._paths: dict[Node, Path] = {}
        self._sizes: dict[Node, Size] = {}
        self._entries: dict[Node, Entry] = {}
        self._locals: dict[str, list[Local]] = {}

    def _local(self, name: str) -> Local | None:
        stack = self._locals.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> Path:
        if type(node) is Ident:
            local = self._local(node.name)
            if local is not None:
                return local.path
        return self._paths.get(node, NO_PATH)

    def size(self, node: Node) -> Size | None:
        """Return the size of a node's value, or None where nothing is known."""
        stored = self._sizes.get(node)
        if stored is not None:
            return stored
        kind = type(node)
        if kind is Literal:
            value = node.value  # type: ignore[attr-defined]
            count = len(value) if type(value) in {str, bytes} else 1
            return count, count
        if kind is ListLiteral:
            count = len(node.elements)  # type: ignore[attr-defined]
            return count, count
        if kind is MapLiteral:
            count = len(node.entries)  # type: ignore[attr-defined]
            return count, count
        path = self._path(node)
        if path.length:
            found = device_size(path.steps())
            if found is not None:
                self._sizes[node] = found
                return found
        if _is_scalar(node.type):
            return ONE
        if kind is Ident:
            local = self._local(node.name)  # type: ignore[attr-defined]
            if local is not None:
                return local.size
        return None

    def size_or_unknown(self, node: Node) -> Size:
        """Return the size of a node's value, or the full range where nothing is known."""
        return self.size(node) or UNKNOWN

    def entry(self, node: Node) -> Entry | None:
        """Return the sizes of the entries of a container."""
        found = self._entries.get(node)
        if found is None and type(node) is Ident:
            local = self._local(node.name)
            return local.entry if local is not None else None
        return found

    def set_entry(self, node: Node, entry: Entry | None) -> None:
        """Record the sizes of the entries of a container."""
        if entry is not None:
            self._entries[node] = entry

    def _copy_sizes(self, to: Node, source: Node) -> None:
        found = self.size(source)
        if found is not None:
            self._sizes[to] = found
        self.set_entry(to, self.entry(source))

    def _operand(self, node: Node) -> Operand:
        path = self._path(node)
        if path.length and path.array[0] in _ACCUMULATORS:
            path = NO_PATH
        return Operand(node, path, self.size(node))

    def _join_entries(self, node: Node, left: Node, right: Node) -> None:
        mine, theirs = self.entry(left), self.entry(right)
        if mine is not None and theirs is not None:
            self._entries[node] = mine[0], union(mine[1], theirs[1]), union(mine[2], theirs[2])

    def _push(self, name: str, local: Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _push_iteration(self, node: Comprehension) -> None:
        entry, path = self.entry(node.range), self._path(node.range)
        is_list = (entry[0] if entry is not None else node.range.type.kind) == "list"
        if not node.var2:
            size = None if entry is None else entry[2] if is_list else entry[1]
            self._push(node.var, Local(path.append(ITEMS if is_list else KEYS), size, None))
            return
        key, value = (entry[1], entry[2]) if entry is not None else (None, None)
        self._push(node.var, Local(path.append(INDICES if is_list else KEYS), key, None))
        self._push(node.var2, Local(path.append(ITEMS if is_list else VALUES), value, None))


def _is_scalar(t: Type) -> bool:
    return t.kind in _SCALARS or (is_optional(t) and _is_scalar(t.params[0]))
