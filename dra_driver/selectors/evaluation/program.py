"""Programs: everything about an expression that is computed before the first device: constants, sets, patterns.

In: a checked tree. Out: a `Program` that the evaluators read, or a `BadProgram` where construction fails on the server
too (a constant that can't be converted, a pattern that is not RE2), even in branches that would never run.

Source: cel-go's planner with its optimizing decorators; Kubernetes' regex optimizations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dra_driver.selectors.checking.behaviour import CHANGING, Behaviour, behaviour_of
from dra_driver.selectors.checking.validators import CompilerPanic
from dra_driver.selectors.evaluation.operand_types import guarded
from dra_driver.selectors.library.access import KEY_TYPES
from dra_driver.selectors.library.conversions import CONVERSIONS
from dra_driver.selectors.library.functions import FUNCTIONS, Function, implementation
from dra_driver.selectors.library.regex import PATTERN_FUNCTIONS, BadPattern, Pattern, compile_pattern
from dra_driver.selectors.syntax.nodes import (
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
from dra_driver.selectors.values.arithmetic import INT_MAX
from dra_driver.selectors.values.construction import make_list, make_map
from dra_driver.selectors.values.containers import whole_numbers
from dra_driver.selectors.values.messages import ENUM_VALUES, UNDEFINED_AS_VALUES
from dra_driver.selectors.values.type_names import go_type, runtime_type_name
from dra_driver.selectors.values.types import parse_type
from dra_driver.selectors.values.values import CelAbort, CelError, TypeValue, Uint

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
