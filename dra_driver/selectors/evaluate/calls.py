"""Closures for comparisons, arithmetic, membership and functions.

In: closures of the operands, and which of them are constants. Out: one closure. Constant operands are examined here,
only once: the type of a constant selects the implementation, a pure constructor of constants is evaluated, and a
compiled pattern is used. The semantics are those of `equality.py` and `functions.py`; this module only
saves look-ups.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dra_driver.selectors.check.declarations import Behaviour
from dra_driver.selectors.evaluate.folds import Folds
from dra_driver.selectors.evaluate.program import guarded, member_key
from dra_driver.selectors.functions.functions import FUNCTIONS, TABLES, has_field, implementation, refusal
from dra_driver.selectors.functions.functions import index as read_index
from dra_driver.selectors.functions.functions import index_optional as read_optional
from dra_driver.selectors.functions.lists import LIST_AND_ANY
from dra_driver.selectors.functions.strings import Pattern
from dra_driver.selectors.parse.tree import Call, Ident, Node, Select
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
from dra_driver.selectors.values.messages import insert
from dra_driver.selectors.values.types import Type
from dra_driver.selectors.values.values import CelError, Optional, TypeValue, refuse_unhashable

Closure = Callable[[Any], Any]
Constants = list[tuple[bool, Any]]

_PLAIN = frozenset({str, int, bool})  # types whose values Python compares with each other as CEL does
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}
PURE = frozenset({"quantity", "semver", "ip", "cidr", "url", "isQuantity", "isSemver", "isIP", "isCIDR", "isURL"})
PURE |= {"url since 1.36", "isURL since 1.36"}


def emit_equality(operands: list[Closure], constants: Constants, *, negated: bool) -> Closure:
    """Make the closure of `==` or `!=`."""
    left, right = operands
    known, constant = constants[1]
    kind = type(constant)
    if negated:
        if known and kind in _PLAIN:

            def differs_from_constant(frame: Any) -> bool:
                value = left(frame)
                return bool(value != constant) if type(value) is kind else not is_equal(value, constant)

            return differs_from_constant
        return lambda frame: not is_equal(left(frame), right(frame))
    if known and kind in _PLAIN:

        def equals_constant(frame: Any) -> bool:
            value = left(frame)
            return bool(value == constant) if type(value) is kind else equal(value, constant)

        return equals_constant
    return lambda frame: equal(left(frame), right(frame))


def emit_order(function: str, operands: list[Closure], constants: Constants) -> Closure | None:
    """Make the closure of `<`, `<=`, `>` or `>=`; return None for any other function."""
    holds = _ORDERS.get(function)
    if holds is None:
        return None
    left, right = operands
    known, constant = constants[1]
    kind = type(constant)
    if known and kind in _PLAIN:

        def orders_constant(frame: Any) -> bool:
            value = left(frame)
            if type(value) is kind:
                return holds(value, constant)
            return holds(compare(value, constant, function), 0)

        return orders_constant
    return lambda frame: holds(compare(left(frame), right(frame), function), 0)


def emit_binary(function: str, operands: list[Closure]) -> Closure | None:
    """Make the closure of arithmetic, `in`, unary minus or the hidden insert; return None for any other function."""
    if function == "-_":
        operand = operands[0]
        return lambda frame: negate(operand(frame))
    if function == "cel.@mapInsert":
        return lambda frame: insert(*[closure(frame) for closure in operands])
    if function == "@in":
        needle, holder = operands

        def member(frame: Any) -> bool:
            value = needle(frame)
            return contains(holder(frame), value)

        return member
    table = OPERATORS.get(function)
    if table is None:
        return None
    left, right = operands

    def calculate(frame: Any) -> Any:
        a, b = left(frame), right(frame)
        operation = table.get((type(a), type(b)))
        if operation is None:
            raise refuse(function, a)
        return operation(a, b)

    return calculate


def emit_membership(needle: Closure, members: frozenset[Any]) -> Closure:
    """Make the closure of `in` for a list of constants."""
    texts = frozenset([key[1] for key in members if key[0] is str])

    def member(frame: Any) -> bool:
        value = needle(frame)
        if type(value) is str:
            return value in texts
        refuse_unhashable(value)
        try:
            return member_key(value) in members
        except TypeError:
            return False

    return member


def emit_call(
    function: str, operands: list[Closure], constants: Constants, pattern: Pattern | None, bound: Sequence[Type]
) -> Closure:
    """Make the closure of a library function's call; `bound` are the parameters that its operands must fit, if any."""
    if function in PURE and all(known for known, _ in constants):
        return _evaluated(function, [value for _, value in constants])
    if pattern is not None:
        return _with_pattern(function, operands, pattern)
    table = TABLES.get(function, {} if function not in FUNCTIONS else None)
    if table is None or bound or function in LIST_AND_ANY:
        call = guarded(function, bound, implementation(function, member=False))
        return lambda frame: call(*[closure(frame) for closure in operands])
    if len(operands) == 1:
        return _unary(function, operands[0], {types[0]: use for types, use in table.items() if len(types) == 1})
    if len(operands) == 2:
        known, constant = constants[1]
        if known:
            return _binary_constant(function, operands[0], constant, table)
        return _binary(function, operands[0], operands[1], table)

    def call_many(frame: Any) -> Any:
        values = [closure(frame) for closure in operands]
        use = table.get(tuple([type(value) for value in values]))
        if use is None:
            raise refusal(function, tuple(values))
        return use(*values)

    return call_many


def _evaluated(function: str, values: list[Any]) -> Closure:
    try:
        result = FUNCTIONS[function](*values)
    except CelError as error:
        text = error.text

        def fails(_: Any) -> Any:
            raise CelError(text)

        return fails
    return lambda _: result


def _with_pattern(function: str, operands: list[Closure], pattern: Pattern) -> Closure:
    subject = operands[0]
    use: Callable[..., Any] = {"matches": pattern.matches, "find": pattern.find, "findAll": pattern.find_all}[function]
    if len(operands) == 2:

        def search(frame: Any) -> Any:
            value = subject(frame)
            if type(value) is str:
                return use(value)
            if type(value) is TypeValue:
                return use(value.name)  # with a constant pattern the server looks at the Go value, which is the name
            raise CelError(NO_SUCH_OVERLOAD)

        return search
    limit = operands[2]

    def search_some(frame: Any) -> Any:
        value, count = subject(frame), limit(frame)
        if type(value) is str and type(count) is int:
            return use(value, count)
        raise CelError(NO_SUCH_OVERLOAD)

    return search_some


def _unary(function: str, operand: Closure, table: dict[type, Callable[..., Any]]) -> Closure:
    def call(frame: Any) -> Any:
        value = operand(frame)
        use = table.get(type(value))
        if use is None:
            raise refusal(function, (value,))
        return use(value)

    return call


def _binary_constant(
    function: str, first: Closure, constant: Any, table: dict[tuple[type, ...], Callable[..., Any]]
) -> Closure:
    fitting = {types[0]: use for types, use in table.items() if len(types) == 2 and types[1] is type(constant)}

    def call(frame: Any) -> Any:
        value = first(frame)
        use = fitting.get(type(value))
        if use is None:
            raise refusal(function, (value, constant))
        return use(value, constant)

    return call


def _binary(
    function: str, first: Closure, second: Closure, table: dict[tuple[type, ...], Callable[..., Any]]
) -> Closure:
    def call(frame: Any) -> Any:
        a, b = first(frame), second(frame)
        use = table.get((type(a), type(b)))
        if use is None:
            raise refusal(function, (a, b))
        return use(a, b)

    return call


# Closures for accesses to fields of the device, and to any other field or element.

_MAPS = frozenset({"attributes", "capacity"})


class Accesses(Folds):
    """The part of the compiler that handles accesses; the compiler itself supplies `emit`.

    `constants` holds the known values of nodes. With `framed`, closures take a frame, whose first slot holds the view;
    otherwise they take the view itself.
    """

    def __init__(
        self, constants: Mapping[Node, Any], behaviour: Behaviour, *, shows_sharing: bool, framed: bool
    ) -> None:
        super().__init__()
        self._constants = constants
        self._behaviour = behaviour
        self._shows_sharing = shows_sharing
        self._framed = framed

    def select(self, node: Select) -> Closure:
        """Make the closure of `operand.field`, or of `has(operand.field)`."""
        operand, field = node.operand, node.field
        known, unwraps = self.domain(operand), self._behaviour.unwraps(operand)
        if node.test:
            if known is not None:
                domain_of = self._domain_closure(*known)
                return lambda frame: field in domain_of(frame)
            holder = self.emit(operand)
            return lambda frame: has_field(holder(frame), field, unwraps=unwraps)
        if self._is_device(operand):
            return self._device_field(field)
        if known is not None:
            return self._value_closure(*known, field)
        itself = self.domain(node)
        if itself is not None:
            return self._domain_closure(*itself)
        holder = self.emit(operand)

        def select(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is dict:
                try:
                    return found[field]
                except KeyError:
                    raise CelError(f"no such key: {field}") from None
            if type(found) is Optional:
                return read_optional(found, field, unwraps=unwraps)
            return read_index(found, field)

        return select

    def index(self, node: Call) -> Closure:
        """Make the closure of `holder[key]`."""
        itself = self.domain(node)
        if itself is not None:
            return self._domain_closure(*itself)
        key = self._constants.get(node.args[1])
        known = self.domain(node.args[0])
        if known is not None and type(key) is str:
            return self._value_closure(*known, key)
        holder, position = self.emit(node.args[0]), self.emit(node.args[1])
        unwraps = self._behaviour.unwraps(node.args[0])

        def at(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is Optional:
                return read_optional(found, position(frame), unwraps=unwraps) if found.present else found
            return read_index(found, position(frame))

        return at

    def index_optional(self, node: Call) -> Closure:
        """Make the closure of `holder[?key]`, or of `holder.?key`."""
        holder, key = self.emit(node.args[0]), self.emit(node.args[1])
        unwraps = self._behaviour.unwraps(node.args[0])

        def at(frame: Any) -> Any:
            found = holder(frame)
            if type(found) is Optional and not found.present:
                return found
            return read_optional(found, key(frame), unwraps=unwraps)

        return at

    def _is_device(self, node: Node) -> bool:
        return type(node) is Ident and node.name == "device" and not self.is_local("device")

    def _device_field(self, name: str) -> Closure:
        if name == "allowMultipleAllocations":
            shows = self._shows_sharing
            if self._framed:
                return lambda frame: frame[0].shared and shows
            return lambda view: view.shared and shows
        if self._framed:
            return {
                "driver": lambda frame: frame[0].driver,
                "attributes": lambda frame: frame[0].attributes,
                "capacity": lambda frame: frame[0].capacity,
            }[name]
        return {
            "driver": lambda view: view.driver,
            "attributes": lambda view: view.attributes,
            "capacity": lambda view: view.capacity,
        }[name]

    def domain(self, node: Node) -> tuple[str, str] | None:
        """Recognise `device.attributes["d"]` and `device.attributes.d`; return the field and the domain."""
        if type(node) is Call and node.function == "_[_]":
            holder, key = node.args[0], self._constants.get(node.args[1])
        elif type(node) is Select and not node.test:
            holder, key = node.operand, node.field
        else:
            return None
        if type(key) is not str or type(holder) is not Select or holder.field not in _MAPS:
            return None
        return (holder.field, key) if self._is_device(holder.operand) and not holder.test else None

    def _domain_closure(self, field: str, domain: str) -> Closure:
        if field == "attributes":
            if self._framed:
                return lambda frame: frame[0].attributes[domain]
            return lambda view: view.attributes[domain]
        if self._framed:
            return lambda frame: frame[0].capacity[domain]
        return lambda view: view.capacity[domain]

    def _value_closure(self, field: str, domain: str, name: str) -> Closure:
        """Make the closure of one attribute or capacity."""
        if self._framed:
            domain_of = self._domain_closure(field, domain)

            def framed(frame: Any) -> Any:
                try:
                    return domain_of(frame)[name]
                except KeyError:
                    raise CelError(f"no such key: {name}") from None

            return framed

        def attribute(view: Any) -> Any:
            try:
                return view.attributes[domain][name]
            except KeyError:
                raise CelError(f"no such key: {name}") from None

        def capacity(view: Any) -> Any:
            try:
                return view.capacity[domain][name]
            except KeyError:
                raise CelError(f"no such key: {name}") from None

        return attribute if field == "attributes" else capacity
