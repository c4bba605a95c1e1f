"""Programs: everything about an expression that is computed before the first device: constants, sets, patterns.

In: a checked tree. Out: a `Program` that the evaluators read, or a `BadProgram` where construction fails on the server
too (a constant that can't be converted, a pattern that is not RE2), even in branches that would never run.

Source: cel-go's planner with its optimizing decorators; Kubernetes' regex optimizations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.versions import Semver, SemverError
from dra_driver.selectors.check.declarations import CHANGING, Behaviour, behaviour_of
from dra_driver.selectors.check.validators import CompilerPanic
from dra_driver.selectors.functions.functions import (
    FUNCTIONS,
    KEY_TYPES,
    UNGUARDED,
    Domains,
    Function,
    implementation,
    refusal,
)
from dra_driver.selectors.functions.lists import interned_quantity, is_list
from dra_driver.selectors.functions.strings import PATTERN_FUNCTIONS, BadPattern, Pattern, compile_pattern
from dra_driver.selectors.functions.time import CONVERSIONS
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
from dra_driver.selectors.values.equality import INT_MAX
from dra_driver.selectors.values.messages import ENUM_VALUES, UNDEFINED_AS_VALUES, make_list, make_map
from dra_driver.selectors.values.types import Type, go_type, parse_type, runtime_type_name, type_name
from dra_driver.selectors.values.values import (
    CelAbort,
    CelError,
    CelQuantity,
    TypeValue,
    Uint,
    is_map,
    map_items,
    unfold,
    whole_numbers,
)

# Operand types: whether operands have the types of the one overload to which the checker has bound a call.

_ANY = frozenset({"dyn", "any", "param"})


def guarded(name: str, params: Sequence[Type], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses operands which the overload does not accept; without parameters it accepts any."""
    if not params or name in UNGUARDED:
        return call

    def checked(*values: Any) -> Any:
        if not _accept(params, values):
            raise refusal(name, values)
        return call(*values)

    return checked


def _accept(params: Sequence[Type], values: Sequence[Any]) -> bool:
    return all(_accepts(param, value) for param, value in zip(params, values, strict=True))


def _accepts(param: Type, value: Any) -> bool:
    if param.kind in _ANY:
        return True
    if is_list(value):
        elements = unfold(value)
        return param.kind == "list" and (not elements or _accepts(param.params[0], elements[0]))
    if is_map(value):
        first = next(iter(map_items(value)), None)
        return param.kind == "map" and (first is None or _accept(param.params, first))
    return runtime_type_name(param) == type_name(value)


_SUMS = frozenset({"uint", "double", "duration"})
_FOLDED = frozenset({*CONVERSIONS, "dyn", "type"})
_HASHED = frozenset({bool, int, Uint, float, str})
_MISSING = object()


class BadProgram(Exception):
    """The construction of a program fails."""


@dataclass(slots=True)
class Program:
    """The root, and what is known about some nodes: a constant value, a set of members, a pattern, a function.

    With `changes_quantities` an evaluation may change the quantities that it reads, so it needs copies.
    """

    root: Node
    behaviour: Behaviour
    constants: dict[Node, Any] = field(default_factory=dict)
    members: dict[Node, frozenset[Any]] = field(default_factory=dict)
    patterns: dict[Node, Pattern] = field(default_factory=dict)
    functions: dict[Node, Function] = field(default_factory=dict)
    changes_quantities: bool = False

    def table_entry(self, call: Call) -> str:
        """Return the name of the table entry that implements a call as this version does."""
        function = call.function
        if self.changes_quantities and function in CHANGING:
            return CHANGING[function]
        if function == "sum" and call.type.kind in _SUMS:  # an empty list sums up to the zero of its type
            return f"sum of {call.type.kind}"
        return self.behaviour.names.get(function, function)


def construct(root: Node, kubernetes: str) -> Program:
    """Compute everything that does not depend on a device, by the rules of one version.

    Raises:
        BadProgram: The server's program construction fails.
        CompilerPanic: It crashes: a map of constants has a key that can't be hashed.
    """
    program = Program(root, behaviour_of(kubernetes))
    _Constructor(program).construct()
    return program


def member_key(value: Any) -> Any:
    """Return the key of a value in a set of constants: its exact type and value."""
    return type(value), value


class _Constructor:
    __slots__ = ("_calls", "_constants", "_program")

    def __init__(self, program: Program) -> None:
        self._program = program
        self._constants = program.constants
        self._calls: list[Call] = []

    def construct(self) -> None:
        """Compute the whole program. The function of a call is known only after all calls have been visited."""
        program = self._program
        self.visit(program.root)
        for call in self._calls:
            name = program.table_entry(call)
            program.functions[call] = guarded(name, call.bound, implementation(name, member=call.target is not None))

    def visit(self, node: Node) -> bool:
        """Visit a node and everything below it; return whether the node is constant."""
        kind = type(node)
        if kind is Literal:
            self._constants[node] = node.value  # type: ignore[attr-defined]
            return True
        if kind is Call:
            return self._call(node)  # type: ignore[arg-type]
        if kind is Ident:
            return self._type(node, node.declared)  # type: ignore[attr-defined]
        if kind is Select:
            if node.declared:  # type: ignore[attr-defined]
                return self._type(node, node.declared)  # type: ignore[attr-defined]
            self.visit(node.operand)  # type: ignore[attr-defined]
            return False
        if kind is ListLiteral:
            return self._list(node)  # type: ignore[arg-type]
        if kind is MapLiteral:
            return self._map(node)  # type: ignore[arg-type]
        if kind is Message:
            for entry in node.entries:  # type: ignore[attr-defined]
                self.visit(entry.value)
            return False
        assert isinstance(node, Comprehension)  # noqa: S101
        for part in (node.init, node.range, node.cond, node.step, node.result):
            self.visit(part)
        return False

    def _type(self, node: Node, name: str) -> bool:
        if not name:
            if type(node) is Ident and node.type.kind == "type":
                # The server treats any value of type `type` as the name of a type.
                raise BadProgram(f"reference to undefined type: {node.name}")
            return False
        if name in ENUM_VALUES:
            self._constants[node] = ENUM_VALUES[name]
            return True
        if name in UNDEFINED_AS_VALUES:
            raise BadProgram(f"reference to undefined type: {name}")
        t = node.type.params[0] if node.type.params else parse_type("type")
        self._constants[node] = TypeValue(runtime_type_name(t))
        return True

    def _list(self, node: ListLiteral) -> bool:
        constant = True
        for element in node.elements:
            constant = self.visit(element) and constant
        if constant and not node.optional:
            self._constants[node] = make_list([self._constants[element] for element in node.elements], node.optional)
            return True
        return False

    def _map(self, node: MapLiteral) -> bool:
        constant = True
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            constant = self.visit(entry.key) and constant
            constant = self.visit(entry.value) and constant and not entry.optional
        if not constant:
            return False
        known = self._constants
        try:
            self._constants[node] = make_map(
                [(known[entry.key], known[entry.value], False) for entry in node.entries if entry.key is not None]
            )
        except CelError:
            return False  # it fails when it is evaluated
        except CelAbort as panic:
            raise CompilerPanic(panic.text.removeprefix("internal error: ")) from panic
        return True

    def _call(self, node: Call) -> bool:
        operands = node.args if node.target is None else [node.target, *node.args]
        constant = True
        for operand in operands:
            constant = self.visit(operand) and constant
        function = node.function
        if function in {"add", "sub"} and self._program.behaviour.changes_receivers:
            self._program.changes_quantities = True
        if function in _FOLDED and len(operands) == 1 and constant:
            try:
                self._constants[node] = FUNCTIONS[function](self._constants[operands[0]])
            except CelError as error:
                raise BadProgram(error.text) from error
            return True
        if function in {"_[_]", "_[?_]"} and type(self._constants.get(node.args[1], "")) not in KEY_TYPES:
            raise BadProgram(f"invalid qualifier type: {go_type(self._constants[node.args[1]])}")
        if function == "@in" and node.overloads == ("in_list",):
            return self._membership(node)
        if function in PATTERN_FUNCTIONS and len(operands) > 1:
            self._pattern(node, self._constants.get(operands[1], _MISSING))
        if not function.startswith("_"):  # operators have no table entry
            self._calls.append(node)
        return False

    def _membership(self, node: Call) -> bool:
        values = self._constants.get(node.args[1], _MISSING)
        if type(values) is not list:
            return False
        if not values:
            self._constants[node] = False
            return True
        keys: set[Any] = set()
        for value in values:
            if type(value) not in _HASHED:
                return False
            keys.update(map(member_key, _equivalents(value)))
        self._program.members[node] = frozenset(keys)
        return False

    def _pattern(self, node: Call, pattern: Any) -> None:
        if type(pattern) is not str:
            return
        try:
            self._program.patterns[node] = compile_pattern(pattern)
        except BadPattern as bad:
            raise BadProgram(str(bad)) from bad


def _equivalents(value: Any) -> list[Any]:
    """List the values of all number types that count as equal to a constant."""
    kind = type(value)
    if kind is float:
        return [] if math.isnan(value) else [value, *whole_numbers(value)]
    if kind is int:
        return [value, float(value)] + ([Uint(value)] if value >= 0 else [])
    if kind is Uint:
        return [value, float(value)] + ([int(value)] if value <= INT_MAX else [])
    return [value]


# A device as expressions see it.

_UNSUPPORTED = "unsupported attribute value"


class DeviceView:
    """One converted device. `problem` says why no selector can be evaluated on it; it is None for a good device."""

    __slots__ = ("attributes", "capacity", "driver", "list_fault", "list_problem", "problem", "shared")

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.attributes: dict[str, dict[str, Any]] = Domains()
        self.capacity: dict[str, dict[str, Any]] = Domains()
        self.shared = False  # allowMultipleAllocations
        self.problem: str | None = None
        self.list_problem: str | None = None  # like `problem`, for versions that do not support list values
        self.list_fault: str | None = None  # like `problem`, for versions that do

    def root(self, *, shows_sharing: bool, copies_quantities: bool = False) -> dict[str, Any]:
        """Return the value of the variable `device`; with `copies_quantities` an evaluation may change quantities."""
        capacity = self.capacity
        if copies_quantities:
            capacity = Domains()
            for domain, amounts in self.capacity.items():
                capacity[domain] = {name: CelQuantity(amount.number) for name, amount in amounts.items()}
        return {
            "driver": self.driver,
            "attributes": self.attributes,
            "capacity": capacity,
            "allowMultipleAllocations": self.shared and shows_sharing,
        }


def prepare_device(device: Mapping[str, Any], driver: str) -> DeviceView:
    """Convert a device for evaluation."""
    view = DeviceView(driver)
    view.shared = bool(device.get("allowMultipleAllocations"))
    attributes, capacity = view.attributes, view.capacity
    for name, attribute in (device.get("attributes") or {}).items():
        try:
            value = _attribute(attribute)
        except (SemverError, CelError) as error:
            _record_fault(view, name, attribute, error)
            continue
        if type(value) is list:
            view.list_problem = view.list_problem or f"attribute {name}: {_UNSUPPORTED}"
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        held = attributes.get(domain)
        if held is None:
            attributes[domain] = {identifier: value}
        else:
            held[identifier] = value
    for name, amount in (device.get("capacity") or {}).items():
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        try:
            quantity = _quantity(amount)
        except (CelError, QuantityError) as error:
            view.problem = view.problem or f"capacity {name}: {error}"
            continue
        capacity.setdefault(domain, {})[identifier] = quantity
    return view


def _record_fault(view: DeviceView, name: str, attribute: Any, error: SemverError | CelError) -> None:
    """Record that an attribute can't be converted."""
    text = error.message if isinstance(error, SemverError) else error.text
    words = f"parse semantic version: {text}" if isinstance(error, SemverError) else text
    if _holds_list(attribute):
        view.list_problem = view.list_problem or f"attribute {name}: {_UNSUPPORTED}"
        view.list_fault = view.list_fault or f"attribute {name}: {words}"
    else:
        view.problem = view.problem or f"attribute {name}: {words}"


def _quantity(amount: Any) -> CelQuantity:
    value = amount.get("value") if isinstance(amount, Mapping) else amount
    if isinstance(value, str):
        return interned_quantity(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return CelQuantity(Quantity.of(value))
    if value is None:
        return CelQuantity(Quantity(0))
    raise CelError("unsupported capacity value")


def _attribute(attribute: Any) -> Any:
    """Return the one value that an attribute holds."""
    if not isinstance(attribute, Mapping):
        raise CelError(_UNSUPPORTED)
    for kind, read in _READERS.items():
        value = attribute.get(kind)
        if value is not None:
            return read(value)
    raise CelError(_UNSUPPORTED)


def _holds_list(attribute: Any) -> bool:
    return isinstance(attribute, Mapping) and any(isinstance(value, list) for value in attribute.values())


def _int(value: Any) -> int:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise CelError(_UNSUPPORTED)


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise CelError(_UNSUPPORTED)


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise CelError(_UNSUPPORTED)


def _version(value: Any) -> Semver:
    return Semver.parse(_string(value))


def _list_of(read: Any) -> Any:
    def convert(values: Any) -> list[Any]:
        if type(values) is not list:
            raise CelError(_UNSUPPORTED)
        return [read(value) for value in values]

    return convert


_READERS: dict[str, Any] = {
    "int": _int,
    "bool": _bool,
    "string": _string,
    "version": _version,
    "ints": _list_of(_int),
    "bools": _list_of(_bool),
    "strings": _list_of(_string),
    "versions": _list_of(_version),
}
