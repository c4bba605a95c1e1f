"""The type checker.

In: a parsed tree and the declarations. Out: types and candidate overloads written into the nodes, or faults. It
evaluates nothing and does not judge literals (`validators.py` does).

Source: cel-go's checker. Messages, their positions and their order are Kubernetes' own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from dra_driver.selectors.check.declarations import Declarations
from dra_driver.selectors.check.validators import DEVICE, Names, without_dot
from dra_driver.selectors.parse.lexer import NOWHERE, SyntaxFault
from dra_driver.selectors.parse.tree import (
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
    qualified_name,
)
from dra_driver.selectors.values.messages import MESSAGE_FIELDS, message_name
from dra_driver.selectors.values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    WILD,
    Bindings,
    Type,
    TypeTooLarge,
    is_optional,
    list_of,
    map_of,
    optional_of,
)
from dra_driver.selectors.values.values import Uint

# Literals of containers: the types of the lists, maps and messages that are written in an expression.


class Literals(Names, ABC):
    """The part of the checker that determines the types of list, map and message literals."""

    __slots__ = ("_bindings",)

    def __init__(self, declarations: Declarations) -> None:
        super().__init__(declarations)
        self._bindings = Bindings()

    @abstractmethod
    def check(self, node: Node) -> None:
        """Check one node and everything below it."""

    def _unwrapped(self, node: Node) -> Type:
        """Return the type of the value inside an optional entry."""
        found = node.type
        if is_optional(found):
            return found.params[0]
        if found.kind not in {"dyn", "any"}:
            self._fault(node, f"expected type '{optional_of(found)}' but found '{found}'")
        return found

    def _list(self, node: ListLiteral) -> None:
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            self.check(element)
            found = self._unwrapped(element) if index in node.optional else element.type
            if found is not joined:
                joined = self._bindings.join(joined, found)
        node.type = list_of(joined if joined is not None else self._bindings.fresh())

    def _map(self, node: MapLiteral) -> None:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            self.check(entry.key)
            keys = self._bindings.join(keys, entry.key.type)
            self.check(entry.value)
            found = self._unwrapped(entry.value) if entry.optional else entry.value.type
            values = self._bindings.join(values, found)
        if keys is None or values is None:
            keys, values = self._bindings.fresh(), self._bindings.fresh()
        node.type = map_of(keys, values)

    def _message(self, node: Message) -> None:
        name = without_dot(node.name)
        local = self._locals.get(name)
        found = local[-1] if local else self._global(name)
        if found is None:
            node.type = ERROR
            self._fault(node, f"undeclared reference to '{node.name}' (in container '')")
            return
        node.name = name
        result = ERROR
        if found.kind == "type" and found.params:
            result = found.params[0]
            name = message_name(name)
            if name not in MESSAGE_FIELDS and name != DEVICE.name:
                self._fault(node, f"'{result.name}' is not a message type")
                result = ERROR
        elif found.kind == "type":
            self._fault(node, "'type' is not a message type")
        elif found.kind != "error":
            self._fault(node, f"'{found.long()}' is not a type")
        node.type = result
        for entry in node.entries:
            self._initializer(entry, name)

    def _initializer(self, entry: Entry, struct: str) -> None:
        self.check(entry.value)
        wanted = self._struct_field(entry, struct, entry.field)
        given = self._unwrapped(entry.value) if entry.optional else entry.value.type
        if not self._bindings.assignable(wanted, given):
            message = f"expected type of field '{entry.field}' is '{wanted}' but provided type is '{given}'"
            self._fault(entry, message)


# Overloads: which functions of a name accept operands of given types, and the type of the result.


class Overloads:
    """The overloads of the declarations, as far as the bindings of one expression allow them."""

    __slots__ = ("_bindings", "_declarations")

    def __init__(self, declarations: Declarations, bindings: Bindings) -> None:
        self._declarations = declarations
        self._bindings = bindings

    def resolve(self, function: str, types: list[Type], *, member: bool) -> tuple[tuple[str, ...], Type] | None:
        """Return the candidates' ids and the type of the result, or None where nothing matches."""
        key = None
        closed = True
        for t in types:
            if not t.closed:
                closed = False
                break
        if closed:
            key = (function, member, *[t.key for t in types])
            known = self._declarations.resolutions.get(key)
            if known is not None:
                return known
        ids, result = self._candidates(function, types, member=member)
        if result is None:
            return None
        if key is not None and result.closed:
            self._declarations.remember(key, tuple(ids), result)
        return tuple(ids), result

    def _candidates(self, function: str, types: list[Type], *, member: bool) -> tuple[list[str], Type | None]:
        ids: list[str] = []
        result: Type | None = None
        for overload in self._declarations.overloads(function):
            if overload.member is not member or len(overload.params) != len(types):
                continue
            params, outcome = list(overload.params), overload.result
            if overload.variables:
                fresh = {name: self._bindings.fresh() for name in overload.variables}
                params = [_instantiate(t, fresh) for t in params]
                outcome = _instantiate(outcome, fresh)
            if not self._bindings.assignable_all(types, params):
                continue
            ids.append(overload.id)
            outcome = self._bindings.substitute(outcome, unbound_to_dyn=False)
            if result is None:
                result = outcome
            elif result.kind not in {"dyn", "any"} and outcome != result:
                result = DYN
        return ids, result


def _instantiate(t: Type, fresh: dict[str, Type]) -> Type:
    if t.closed:
        return t
    if t.kind == "param":
        return fresh[t.name]
    return Type(t.kind, t.name, tuple([_instantiate(inner, fresh) for inner in t.params]))


_LITERAL_TYPES = {bool: BOOL, int: INT, Uint: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL}
_LOGICAL = {"_&&_": ("logical_and",), "_||_": ("logical_or",)}


def check(root: Node, declarations: Declarations) -> list[SyntaxFault]:
    """Check a tree, write types into its nodes, and return the faults."""
    checker = _Checker(declarations)
    try:
        checker.check(root)
        checker.settle()
    except TypeTooLarge:
        checker.faults.append(SyntaxFault(NOWHERE, "the type of a part of the expression is too large"))
    return checker.faults


class _Checker(Literals):
    __slots__ = ("_open", "_overloads")

    def __init__(self, declarations: Declarations) -> None:
        super().__init__(declarations)
        self._overloads = Overloads(declarations, self._bindings)
        self._open: list[Node] = []  # nodes whose type still contains type parameters

    def settle(self) -> None:
        """Replace the type parameters that are still unbound."""
        for node in self._open:
            node.type = self._bindings.substitute(node.type, unbound_to_dyn=True)

    def check(self, node: Node) -> None:
        """Check one node and everything below it."""
        kind = type(node)
        if kind is Call:
            self._call(node)  # type: ignore[arg-type]
        elif kind is Literal:
            node.type = _LITERAL_TYPES[type(node.value)]  # type: ignore[attr-defined]
        elif kind is Ident:
            self._name(node)  # type: ignore[arg-type]
        elif kind is Select:
            self._select(node)  # type: ignore[arg-type]
        elif kind is Comprehension:
            self._comprehension(node)  # type: ignore[arg-type]
        elif kind is ListLiteral:
            self._list(node)  # type: ignore[arg-type]
        elif kind is MapLiteral:
            self._map(node)  # type: ignore[arg-type]
        else:
            self._message(node)  # type: ignore[arg-type]
        if not node.type.closed:
            self._open.append(node)

    def _current(self, node: Node) -> Type:
        return self._bindings.substitute(node.type, unbound_to_dyn=False)

    # Fields.

    def _select(self, node: Select) -> None:
        name = qualified_name(node)
        if name is not None:
            name = without_dot(name)
            found = self._global(name)
            if found is not None:
                node.declared, node.type = name, found
                return
        result = self._field(node, node.operand, node.field, optional=False)
        node.type = BOOL if node.test else self._bindings.substitute(result, unbound_to_dyn=False)

    def _field(self, node: Node, operand: Node, field: str, *, optional: bool) -> Type:
        self.check(operand)
        holder = self._current(operand)
        was_optional = is_optional(holder)
        holder = holder.params[0] if was_optional else holder
        result = DYN
        if holder.kind == "map":
            result = holder.params[1]
        elif holder.kind == "struct":
            result = self._struct_field(node, holder.name, field)
        elif holder.kind == "param":
            self._bindings.assignable(DYN, holder)
        elif holder.kind not in WILD:
            self._fault(node, f"type '{holder}' does not support field selection")
        return optional_of(result) if optional or was_optional else result

    # Calls.

    def _call(self, node: Call) -> None:
        if node.function == "_?._":
            field = node.args[1]
            assert isinstance(field, Literal)  # noqa: S101
            field.type = STRING
            result = self._field(node, node.args[0], field.value, optional=True)
            node.type = self._bindings.substitute(result, unbound_to_dyn=False)
            node.overloads = ("select_optional_field",)
            return
        for arg in node.args:
            self.check(arg)
        target = node.target
        if target is not None:
            prefix = qualified_name(target)
            if prefix is not None:
                name = f"{without_dot(prefix)}.{node.function}"
                if self._declarations.overloads(name):
                    node.function, node.target = name, None
                    self._resolve(node)
                    return
            self.check(target)
        self._declared_call(node)

    def _declared_call(self, node: Call) -> None:
        name = without_dot(node.function)
        if not self._declarations.overloads(name):
            node.type = ERROR
            self._fault(node, f"undeclared reference to '{node.function}' (in container '')")
            return
        node.function = name
        if name in _LOGICAL:
            self._logical(node)
        else:
            self._resolve(node)

    def _logical(self, node: Call) -> None:
        node.overloads, node.type = _LOGICAL[node.function], BOOL
        for arg in node.args:
            if not self._bindings.assignable(arg.type, BOOL):
                self._fault(arg, f"expected type 'bool' but found '{arg.type}'")
                node.type = ERROR

    def _resolve(self, node: Call) -> None:
        """Find the candidate overloads and the result type."""
        operands = node.args if node.target is None else [node.target, *node.args]
        types = [operand.type for operand in operands]
        member = node.target is not None
        found = self._overloads.resolve(node.function, types, member=member)
        if found is None:
            shown = [str(self._bindings.substitute(t, unbound_to_dyn=True)) for t in types]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
            self._fault(node, f"found no matching overload for '{node.function}' applied to '{applied}'")
            node.type = ERROR
            return
        node.overloads, node.type = found
        self._bind(node)

    def _bind(self, node: Call) -> None:
        """Record the parameters of the only candidate if a type is open, because the value may have another type."""
        if self._open and len(node.overloads) == 1:
            found = self._declarations.overloads(node.function)
            node.bound = next((one.params for one in found if one.id == node.overloads[0]), ())

    # Folds.

    def _comprehension(self, node: Comprehension) -> None:
        self.check(node.range)
        self.check(node.init)
        first, second = self._iteration_types(node)
        accu = node.init.type
        self._declare(node.accu, accu)
        self._declare(node.var, first)
        if node.var2:
            self._declare(node.var2, second)
        self.check(node.cond)
        self._assert_type(node.cond, BOOL)
        self.check(node.step)
        self._assert_type(node.step, accu)
        if node.var2:
            self._locals[node.var2].pop()
        self._locals[node.var].pop()
        self.check(node.result)
        self._locals[node.accu].pop()
        node.type = self._current(node.result)

    def _assert_type(self, node: Node, wanted: Type) -> None:
        if not self._bindings.assignable(wanted, node.type):
            self._fault(node, f"expected type '{wanted}' but found '{node.type}'")

    def _iteration_types(self, node: Comprehension) -> tuple[Type, Type]:
        """Return the types of both iteration variables; the second counts only if the macro has a second variable."""
        found = self._current(node.range)
        if found.kind == "list":
            element = found.params[0]
            return (INT, element) if node.var2 else (element, element)
        if found.kind == "map":
            return found.params[0], found.params[1]
        if found.kind in {"dyn", "error", "param"}:
            self._bindings.assignable(DYN, found)
            return DYN, DYN
        self._fault(
            node.range,
            f"expression of type '{found}' cannot be range of a comprehension (must be list, map, or dynamic)",
        )
        return ERROR, ERROR
