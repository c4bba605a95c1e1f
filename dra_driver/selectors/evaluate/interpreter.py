"""The careful evaluator: it counts cost, and it can record the value of every part.

In: a program and the root values. Out: a value, a `CelError`, or a `CelAbort` when the budget is spent. It walks the
tree node by node in exactly the server's order; `compiler.py` is the quick way to the same verdict where the cost need
not be counted.

Source: cel-go's interpreter and its cost observer.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.evaluate.charges import Scopes, charge
from dra_driver.selectors.evaluate.program import Program, member_key
from dra_driver.selectors.functions.functions import FUNCTIONS, copied, has_field, index, index_optional, value_of
from dra_driver.selectors.parse.tree import Call, Comprehension, Ident, ListLiteral, MapLiteral, Message, Node, Select
from dra_driver.selectors.values.equality import (
    NO_SUCH_OVERLOAD,
    OPERATORS,
    compare,
    contains,
    equal,
    is_equal,
    negate,
    refuse,
)
from dra_driver.selectors.values.messages import insert, make_list, make_map, make_message
from dra_driver.selectors.values.values import (
    COST_EXCEEDED,
    STEPS,
    CelAbort,
    CelError,
    Optional,
    TypeValue,
    cancellation_check,
    refuse_unhashable,
)

# Operations: calls whose operands are all evaluated.

_ORDERS = {
    "_<_": lambda order: order < 0,
    "_<=_": lambda order: order <= 0,
    "_>_": lambda order: order > 0,
    "_>=_": lambda order: order >= 0,
}


def apply(program: Program, node: Call, values: list[Any]) -> Any:
    """Return the value of a call, given those of its operands. Raises: CelError."""
    function = node.function
    table = OPERATORS.get(function)
    if table is not None:
        operation = table.get((type(values[0]), type(values[1])))
        if operation is None:
            raise refuse(function, values[0])
        return operation(values[0], values[1])
    order = _ORDERS.get(function)
    if order is not None:
        return order(compare(values[0], values[1], function))
    if function == "_==_":
        return equal(values[0], values[1])
    if function == "_!=_":
        return not is_equal(values[0], values[1])
    if function == "@in":
        return contains(values[1], values[0])
    if function == "!_":
        if type(values[0]) is not bool:
            raise CelError(NO_SUCH_OVERLOAD)
        return not values[0]
    if function == "-_":
        return negate(values[0])
    if function == "cel.@mapInsert":
        return insert(*values)
    pattern = program.patterns.get(node)
    if pattern is not None:
        if type(values[0]) is TypeValue and len(values) == 2:
            values = [values[0].name, values[1]]  # as in `calls.py`
        return FUNCTIONS[function](*values) if type(values[0]) is str else _refuse_pattern()
    return program.functions[node](*values)


def _refuse_pattern() -> Any:
    raise CelError(NO_SUCH_OVERLOAD)


BUDGET = 1_000_000
_LIST_COST, _MAP_COST, _MESSAGE_COST = 10, 30, 40
_ACCESS = frozenset({"_[_]", "_[?_]", "_?._"})


class Interpreter(Scopes):
    """One evaluation. `cost` is what it was charged so far, in CEL cost units.

    With `record` it also evaluates parts that the verdict does not need, and `trace` maps nodes to values and errors.
    The budget still bounds the work.
    """

    __slots__ = (
        "_budget",
        "_check",
        "_constants",
        "_device",
        "_newer",
        "_program",
        "_record",
        "_steps",
        "cost",
        "trace",
    )

    def __init__(self, program: Program, device: Any, *, budget: int = BUDGET, record: bool = False) -> None:
        super().__init__()
        self._program = program
        self._constants = program.constants
        self._newer = program.behaviour.newer_costs
        self._device = device
        self._budget = budget
        self._check, self._steps = cancellation_check(), 0
        self.cost = 0
        self._record = record
        self.trace: dict[Node, Any] = {}

    def run(self) -> Any:
        """Evaluate the whole program."""
        return self.eval(self._program.root)

    def _charge(self, cost: int) -> None:
        self.cost += cost
        if self.cost > self._budget:
            raise CelAbort(COST_EXCEEDED)

    def eval(self, node: Node) -> Any:
        """Evaluate a node."""
        constants = self._constants
        if node in constants:
            value = constants[node]
            if self._record:
                self.trace[node] = value
            return value
        if not self._record:
            return self._eval(node)
        try:
            value = self._eval(node)
        except CelError as error:
            self.trace[node] = error
            raise
        self.trace[node] = value
        return value

    def _eval(self, node: Node) -> Any:
        if self._check is not None:
            self._steps += 1
            if self._steps % STEPS == 0:
                self._check()
        kind = type(node)
        if kind is Call:
            return self._call(node)  # type: ignore[arg-type]
        if kind is Ident:
            self._charge(1)
            found = self._scope.get(node.name)  # type: ignore[attr-defined]
            value = self._device if found is None else self.variable(found)
            return copied(value) if type(value) is Optional and self._program.behaviour.copies_branches else value
        if kind is Select:
            return self._select(node)  # type: ignore[arg-type]
        if kind is Comprehension:
            return self.comprehension(node)  # type: ignore[arg-type]
        if kind is ListLiteral:
            values = self._all(node.elements)  # type: ignore[attr-defined]
            self._charge(_LIST_COST)
            return make_list(values, node.optional)  # type: ignore[attr-defined]
        if kind is MapLiteral:
            return self._map(node)  # type: ignore[arg-type]
        assert isinstance(node, Message)  # noqa: S101
        return self._message(node)

    def _all(self, nodes: list[Node]) -> list[Any]:
        values = []
        for node in nodes:
            values.append(self.eval(node))  # noqa: PERF401  (no extra frame)
        return values

    # Names and fields.

    def _operand(self, node: Node) -> Any:
        """Evaluate the operand of a field access; a computed value costs one unit as the root of a chain."""
        value = self.eval(node)
        if not _is_chain(node):
            self._charge(1)
        return value

    def _select(self, node: Select) -> Any:
        holder = self._operand(node.operand)
        unwraps = self._program.behaviour.unwraps(node.operand)
        if node.test:
            # The server charges for the step and refunds one for the root.
            return has_field(holder, node.field, unwraps=unwraps)
        if type(holder) is Optional:
            found = index_optional(holder, node.field, unwraps=unwraps)
            self._charge(1 if found.present else 0)
            return found
        self._charge(1)
        return index(holder, node.field)

    def _access(self, node: Call) -> Any:
        holder = self._operand(node.args[0])
        if type(holder) is Optional and not holder.present:
            return holder
        key = self.eval(node.args[1])
        if node.args[1] not in self._constants and _is_chain(node.args[1]):
            self.cost -= 1  # the root of a chain used as a key is free
        if node.function == "_[_]" and type(holder) is not Optional:
            self._charge(1)
            return index(holder, key)
        found = index_optional(holder, key, unwraps=self._program.behaviour.unwraps(node.args[0]))
        self._charge(1 if found.present else 0)
        return found

    # Containers.

    def _map(self, node: MapLiteral) -> Any:
        entries = []
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            key = self.eval(entry.key)
            entries.append((key, self.eval(entry.value), entry.optional))
        self._charge(_MAP_COST)
        return make_map(entries)

    def _message(self, node: Message) -> Any:
        fields: dict[str, Any] = {}
        for entry in node.entries:
            value = self.eval(entry.value)
            if entry.optional and type(value) is Optional:
                if not value.present:
                    continue
                value = value.value
            fields[entry.field] = value
        self._charge(_MESSAGE_COST)
        return make_message(node.name, fields)

    # Calls.

    def _call(self, node: Call) -> Any:
        function = node.function
        if function in _ACCESS:
            return self._access(node)
        if function in {"_&&_", "_||_"}:
            return self._logical(node, decisive=function == "_||_")
        if function == "_?_:_":
            return self._conditional(node)
        if function in {"or", "orValue"}:
            return self._alternative(node)
        if function == "@not_strictly_false":
            return self._not_strictly_false(node)
        members = self._program.members.get(node)
        if members is not None:
            if self._record:
                self.eval(node.args[1])
            value = self.eval(node.args[0])
            refuse_unhashable(value)
            try:
                return member_key(value) in members
            except TypeError:
                return False
        return self._strict(node)

    def _strict(self, node: Call) -> Any:
        """Evaluate a call that needs all its operands."""
        operands = node.args if node.target is None else [node.target, *node.args]
        values: list[Any] = []
        failed: CelError | None = None
        for operand in operands:
            try:
                values.append(self.eval(operand))
            except CelError as error:
                if len(operands) > 2:
                    raise  # a call with three or more operands stops at the first error; others evaluate both
                failed = failed or error
                values.append(error)
        result: Any = None
        if failed is None:
            try:
                result = apply(self._program, node, values)
            except CelError as error:
                failed = error
        outcome = result if failed is None else failed
        self._charge(charge(node.function, node.overloads, values, outcome, newer=self._newer))
        if failed is not None:
            raise failed
        return result

    def _logical(self, node: Call, *, decisive: bool) -> bool:
        failed: CelError | None = None
        decided = False
        for operand in node.args:
            try:
                value = self.eval(operand)
            except CelError as error:
                failed = failed or error
                continue
            if value is decisive:
                decided = True
                if not self._record:
                    break
            elif type(value) is not bool:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if decided:
            return decisive
        if failed is not None:
            raise failed
        return not decisive

    def _conditional(self, node: Call) -> Any:
        condition = self.eval(node.args[0])
        if type(condition) is not bool:
            raise CelError(NO_SUCH_OVERLOAD)
        chosen = node.args[1] if condition else node.args[2]
        value = self.eval(chosen)
        if type(value) is Optional and self._program.behaviour.copies(chosen):
            value = copied(value)
        if chosen not in self._constants and _is_chain(chosen):
            self.cost -= 1  # the root of a chain used as a branch is free
        return value

    def _alternative(self, node: Call) -> Any:
        """Evaluate or() and orValue(), whose argument is evaluated lazily."""
        assert node.target is not None  # noqa: S101
        first = self.eval(node.target)
        if type(first) is not Optional:
            if self._program.behaviour.refuses_plain:
                raise CelError(NO_SUCH_OVERLOAD)
            return first  # up to 1.36 the server passes on a value that is not an optional
        if first.present:
            return value_of(first) if node.function == "orValue" else first
        return self.eval(node.args[0])

    def _not_strictly_false(self, node: Call) -> bool:
        try:
            value = self.eval(node.args[0])
        except CelError:
            value = True
        self._charge(1)
        return value is not False


def _is_chain(node: Node) -> bool:
    """Return whether the node is a name or a chain of accesses."""
    kind = type(node)
    if kind is Ident or kind is Select:
        return True
    return kind is Call and node.function in _ACCESS  # type: ignore[attr-defined]
