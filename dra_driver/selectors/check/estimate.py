"""The worst-case cost estimate.

In: a checked tree. Out: one number, the most that an evaluation may cost. The API server refuses a new selector whose
estimate exceeds 1,000,000. Nothing is evaluated.

Source: cel-go's checker.Cost, including its order of visits (sizes are read when a node is visited, and visits have
side effects on paths). The cost of each function is in `estimate_rules.py`.
"""

from __future__ import annotations

from dra_driver.selectors.check.declarations import (
    INDICES,
    ITEMS,
    KEYS,
    MAX,
    NO_PATH,
    ONE,
    UNKNOWN,
    VALUES,
    Path,
    Size,
    add,
    device_size,
    multiply,
    union,
)
from dra_driver.selectors.check.estimate_rules import Estimate, Operand, rule_for
from dra_driver.selectors.parse.tree import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
)
from dra_driver.selectors.values.types import Type, is_optional

# Known sizes: the sizes of the values of nodes and of local variables, as far as they are known.

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


_LIST_COST, _MAP_COST, _MESSAGE_COST = 10, 30, 40


def estimate(root: Node, *, newer: bool) -> int:
    """Return the worst-case cost of a checked tree; `newer` selects the costs since 1.37."""
    return _Estimator(newer=newer).cost(root)


class _Estimator(KnownSizes):
    __slots__ = ("_newer",)

    def __init__(self, *, newer: bool) -> None:
        super().__init__()
        self._newer = newer

    def cost(self, node: Node) -> int:
        """Visit a node and return its cost."""
        kind = type(node)
        if kind is Literal:
            return 0
        if kind is Call:
            return self._call(node)  # type: ignore[arg-type]
        if kind is Ident:
            local = self._local(node.name)  # type: ignore[attr-defined]
            self._paths[node] = local.path if local is not None else Path([node.name], 1)  # type: ignore[attr-defined]
            return 1
        if kind is Select:
            return self._select(node)  # type: ignore[arg-type]
        if kind is ListLiteral:
            return self._list(node)  # type: ignore[arg-type]
        if kind is MapLiteral:
            return self._map(node)  # type: ignore[arg-type]
        if kind is Message:
            total = _MESSAGE_COST
            for entry in node.entries:  # type: ignore[attr-defined]
                total = add(total, self.cost(entry.value))
            return total
        assert isinstance(node, Comprehension)  # noqa: S101
        return self._bind(node) if node.is_bind else self._fold(node)

    # Nodes.

    def _select(self, node: Select) -> int:
        if node.declared:
            self._paths[node] = Path([node.declared], 1)
            return 1
        total = self.cost(node.operand)
        if node.test:
            return total
        if node.operand.type.kind in {"map", "struct"}:
            total = add(total, 1)
        self._paths[node] = self._path(node.operand).append(node.field)
        return total

    def _list(self, node: ListLiteral) -> int:
        total, sizes = _LIST_COST, (MAX if node.elements else 0, 0)
        for element in node.elements:
            total = add(total, self.cost(element))
            sizes = union(sizes, self.size_or_unknown(element))
        self._entries[node] = "list", ONE, sizes
        return total

    def _map(self, node: MapLiteral) -> int:
        least = MAX if node.entries else 0
        total, keys, values = _MAP_COST, (least, 0), (least, 0)
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            total = add(total, add(self.cost(entry.key), self.cost(entry.value)))
            keys = union(keys, self.size_or_unknown(entry.key))
            values = union(values, self.size_or_unknown(entry.value))
        self._entries[node] = "map", keys, values
        return total

    def _call(self, node: Call) -> int:
        if node.function == "dyn" and node.target is None:
            total = add(1, self.cost(node.args[0]))
            self._copy_sizes(node, node.args[0])
            return total
        costs, args = [], []
        for arg in node.args:
            costs.append(self.cost(arg))
            args.append(self._operand(arg))
        if node.function in {"_&&_", "_||_"}:
            self._sizes[node] = ONE
            return add(costs[0], costs[1])
        total, target = 0, None
        if node.target is not None:
            total = self.cost(node.target)
            target = self._operand(node.target)
        spent = 0
        for cost in costs:
            spent = add(spent, cost)
        highest, size = self._highest_cost(node, target, args, costs, spent)
        if size is not None:
            self._sizes[node] = size
        return add(total, highest)

    def _highest_cost(
        self, node: Call, target: Operand | None, args: list[Operand], costs: list[int], spent: int
    ) -> tuple[int, Size | None]:
        """Return the most that any candidate overload costs, and the size of the result, as far as it is known."""
        highest, size = 0, None
        for overload in node.overloads:
            found = self._overload(node, overload, target, args, costs)
            highest = max(highest, add(found.cost, spent) if not found.whole else found.cost)
            if found.size is not None:
                size = found.size if size is None else union(size, found.size)
            if overload in {"index_list", "index_map"}:
                entry = self.entry(node.args[0])
                size = entry[2] if entry is not None else None
                step = ITEMS if overload == "index_list" else VALUES
                self._paths[node] = self._path(node.args[0]).append(step)
            if size is None:
                size = self.size(node)
        return highest, size

    def _overload(
        self, node: Call, overload: str, target: Operand | None, args: list[Operand], costs: list[int]
    ) -> Estimate:
        """Return the estimate for one candidate overload, and record the entry sizes that it passes on."""
        if overload == "conditional":
            self._join_entries(node, node.args[1], node.args[2])
            size = union(args[1].size or UNKNOWN, args[2].size or UNKNOWN)
            return Estimate(add(costs[0], max(costs[1], costs[2])), size, whole=True)
        if overload in {"add_string", "add_bytes", "add_list"}:
            self._join_entries(node, node.args[0], node.args[1])
        rule = rule_for(node.function, overload, newer=self._newer)
        found = rule(node, overload, target, args) if rule is not None else None
        return found if found is not None else Estimate(1)

    # Folds.

    def _bind(self, node: Comprehension) -> int:
        total = add(self.cost(node.range), self.cost(node.init))
        self._push(node.accu, Local(self._path(node.init), self.size(node.init), self.entry(node.init)))
        total = add(total, self.cost(node.result))
        self._locals[node.accu].pop()
        self._copy_sizes(node, node.result)
        return total

    def _fold(self, node: Comprehension) -> int:
        total = add(self.cost(node.range), self.cost(node.init))
        # The server reads the entry sizes first, then the path, then the size.
        path, entry = self._path(node.init), self.entry(node.init)
        self._push(node.accu, Local(path, self.size(node.init), entry))
        self._push_iteration(node)
        condition = self.cost(node.cond)
        step = self.cost(node.step)
        self._locals[node.var].pop()
        if node.var2:
            self._locals[node.var2].pop()
        total = add(total, self.cost(node.result))
        self._locals[node.accu].pop()
        count = self.size_or_unknown(node.range)
        total = add(total, multiply(count[1], add(step, condition)))
        if type(node.init) is Literal:
            size = self.size(node.init)
            if size is not None:
                self._sizes[node] = size
        elif type(node.init) in {ListLiteral, MapLiteral}:
            self._sizes[node] = count
            self.set_entry(node, self.entry(node.step))
        return total
