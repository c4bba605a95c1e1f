"""The quick evaluator: a program as nested Python closures.

In: a program. Out: a function from `DeviceView` to a value, or None where the cost must be counted because the
estimate does not bound it. Common shapes (an attribute, an attribute compared with a constant, a method with a
constant argument) become one closure each. Verdicts equal those of `interpreter.py`; tests compare the two.

A closure takes the frame: the view itself if the expression has no local variables, otherwise a list of the view and
one slot for each variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.selectors.check.declarations import may_be_optional
from dra_driver.selectors.evaluate.calls import (
    PURE,
    Accesses,
    Closure,
    emit_binary,
    emit_call,
    emit_equality,
    emit_membership,
    emit_order,
)
from dra_driver.selectors.evaluate.program import DeviceView, Program
from dra_driver.selectors.functions.functions import FUNCTIONS, copied, dispatch_name, index_optional, value_of
from dra_driver.selectors.parse.tree import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    MapLiteral,
    Message,
    Node,
    Select,
    chain_terms,
    children,
)
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.messages import make_list, make_map, make_message
from dra_driver.selectors.values.values import CelError, Optional

# Closures for the logical operators.

ClosureLogic = Callable[[Any], Any]


def all_of(terms: list[ClosureLogic]) -> ClosureLogic:
    """Make the closure of a conjunction: it is false as soon as one term is false, even if other terms fail."""
    chain = tuple(terms)

    def conjunction(frame: Any) -> bool:
        failed: CelError | None = None
        for term in chain:
            try:
                value = term(frame)
            except CelError as error:
                failed = failed or error
                continue
            if value is False:
                return False
            if value is not True:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if failed is not None:
            raise failed
        return True

    return conjunction


def any_of(terms: list[ClosureLogic]) -> ClosureLogic:
    """Make the closure of a disjunction: it is true as soon as one term is true, even if other terms fail."""
    chain = tuple(terms)

    def disjunction(frame: Any) -> bool:
        failed: CelError | None = None
        for term in chain:
            try:
                value = term(frame)
            except CelError as error:
                failed = failed or error
                continue
            if value is True:
                return True
            if value is not False:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if failed is not None:
            raise failed
        return False

    return disjunction


def negation(operand: ClosureLogic) -> ClosureLogic:
    """Make the closure of `!`."""

    def negate(frame: Any) -> bool:
        value = operand(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise CelError(NO_SUCH_OVERLOAD)

    return negate


def choose(condition: ClosureLogic, then: ClosureLogic, otherwise: ClosureLogic) -> ClosureLogic:
    """Make the closure of the ternary operator."""

    def conditional(frame: Any) -> Any:
        value = condition(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise CelError(NO_SUCH_OVERLOAD)

    return conditional


# Functions that can cost more, or return more, than the estimate assumes: the cost of the evaluation must be counted.
_UNBOUNDED = frozenset({"flatten", "strings.quote", "bytes", "transformMapEntry", "validate"})
# The server can't track the cost of these functions when an operand fails: its evaluation panics, so ours must too.
_PANICKING = frozenset({"distinct", "sort", "@sortByAssociatedKeys"})


def compile_program(program: Program, *, shows_sharing: bool) -> Callable[[DeviceView], Any] | None:
    """Compile a program; return None if its cost must be counted."""
    if program.changes_quantities:
        return None
    pending, locals_ = [program.root], 0
    while pending:
        node = pending.pop()
        if type(node) is Call and (node.function in _UNBOUNDED or node.function in _PANICKING):
            return None
        if type(node) is Comprehension:
            if node.macro in _UNBOUNDED:
                return None
            locals_ += 3
        pending.extend(children(node))
    compiler = _Compiler(program, shows_sharing=shows_sharing, framed=locals_ > 0)
    closure = compiler.emit(program.root)
    if not locals_:
        return closure
    size = compiler.frame_size()

    def evaluate(view: DeviceView) -> Any:
        frame: list[Any] = [None] * size
        frame[0] = view
        return closure(frame)

    return evaluate


class _Compiler(Accesses):
    """Turns nodes into closures."""

    def __init__(self, program: Program, *, shows_sharing: bool, framed: bool) -> None:
        super().__init__(program.constants, program.behaviour, shows_sharing=shows_sharing, framed=framed)
        self._program = program

    def emit(self, node: Node) -> Closure:
        """Make the closure of a node."""
        if node in self._constants:
            value = self._constants[node]
            return lambda _: value
        kind = type(node)
        if kind is Call:
            return self._call(node)  # type: ignore[arg-type]
        if kind is Select:
            return self.select(node)  # type: ignore[arg-type]
        if kind is Ident:
            return self._ident(node)  # type: ignore[arg-type]
        if kind is Comprehension:
            return self.comprehension(node)  # type: ignore[arg-type]
        if kind is ListLiteral:
            return self._list(node)  # type: ignore[arg-type]
        if kind is MapLiteral:
            return self._map(node)  # type: ignore[arg-type]
        assert isinstance(node, Message)  # noqa: S101
        return self._message(node)

    def emit_all(self, nodes: list[Node]) -> list[Closure]:
        """Make the closures of several nodes."""
        closures = []
        for node in nodes:
            closures.append(self.emit(node))  # noqa: PERF401  (no extra frame)
        return closures

    # Names and fields.

    def _ident(self, node: Ident) -> Closure:
        if self.is_local(node.name):
            value = self.local(node.name)
            is_copied = self._program.behaviour.copies_branches and may_be_optional(node)
            return _copying(value) if is_copied else value
        shows = self._shows_sharing
        if self._framed:
            return lambda frame: frame[0].root(shows_sharing=shows)
        return lambda view: view.root(shows_sharing=shows)

    # Calls.

    def _constant(self, node: Node) -> tuple[bool, Any]:
        """Return whether a node's value is known, and the value. Constructors of constants count unless they fail."""
        if node in self._constants:
            return True, self._constants[node]
        if type(node) is Call and node.function in PURE and node.target is None:
            values = [self._constants.get(arg, node) for arg in node.args]
            if node not in values:
                try:
                    return True, FUNCTIONS[self._program.table_entry(node)](*values)
                except CelError:
                    return False, None
        return False, None

    def _call(self, node: Call) -> Closure:
        function = node.function
        if function == "_[_]":
            return self.index(node)
        if function in {"_[?_]", "_?._"}:
            return self.index_optional(node)
        if function in {"_&&_", "_||_"}:
            terms = self.emit_all(chain_terms(node))
            return all_of(terms) if function == "_&&_" else any_of(terms)
        if function == "_?_:_":
            condition, *branches = self.emit_all(node.args)
            then, otherwise = (
                _copying(closure) if self._program.behaviour.copies(branch) else closure
                for branch, closure in zip(node.args[1:], branches, strict=True)
            )
            return choose(condition, then, otherwise)
        if function in {"or", "orValue"}:
            return self._alternative(node)
        if function == "!_":
            return negation(self.emit(node.args[0]))
        members = self._program.members.get(node)
        if members is not None:
            return emit_membership(self.emit(node.args[0]), members)
        operands = node.args if node.target is None else [node.target, *node.args]
        closures = self.emit_all(operands)
        constants = [self._constant(operand) for operand in operands]
        name = dispatch_name(self._program.table_entry(node), member=node.target is not None)
        if function in {"_==_", "_!=_"}:
            return emit_equality(closures, constants, negated=function == "_!=_")
        return (
            emit_order(function, closures, constants)
            or emit_binary(function, closures)
            or emit_call(name, closures, constants, self._program.patterns.get(node), node.bound)
        )

    def _alternative(self, node: Call) -> Closure:
        """Make the closure of or() or orValue(); a look-up in a domain with a fallback needs no optional value."""
        assert node.target is not None  # noqa: S101
        first, other = self.emit(node.target), self.emit(node.args[0])
        unwraps, refuses = node.function == "orValue", self._program.behaviour.refuses_plain
        target = node.target
        if unwraps and type(target) is Call and target.function in {"_?._", "_[?_]"}:
            name = self._constants.get(target.args[1])
            if target.function == "_?._":
                name = target.args[1].value  # type: ignore[attr-defined]
            if type(name) is str:
                unwraps_holder = self._program.behaviour.unwraps(target.args[0])
                return _fallback(self.emit(target.args[0]), name, other, unwraps=unwraps_holder)

        def alternative(frame: Any) -> Any:
            found = first(frame)
            if type(found) is not Optional:
                if refuses:
                    raise CelError(NO_SUCH_OVERLOAD)
                return found  # up to 1.36 the server passes on a value that is not an optional
            if found.present:
                return value_of(found) if unwraps else found
            return other(frame)

        return alternative

    # Containers.

    def _list(self, node: ListLiteral) -> Closure:
        closures, optional = self.emit_all(node.elements), node.optional
        return lambda frame: make_list([closure(frame) for closure in closures], optional)

    def _map(self, node: MapLiteral) -> Closure:
        parts = []
        for entry in node.entries:
            assert entry.key is not None  # noqa: S101
            parts.append((self.emit(entry.key), self.emit(entry.value), entry.optional))
        return lambda frame: make_map([(key(frame), value(frame), optional) for key, value, optional in parts])

    def _message(self, node: Message) -> Closure:
        name, parts = node.name, []
        for entry in node.entries:
            parts.append((entry.field, self.emit(entry.value), entry.optional))  # noqa: PERF401  (no extra frame)

        def message(frame: Any) -> Any:
            fields: dict[str, Any] = {}
            for field, closure, optional in parts:
                value = closure(frame)
                if optional and type(value) is Optional:
                    if not value.present:
                        continue
                    value = value.value
                fields[field] = value
            return make_message(name, fields)

        return message


def _copying(branch: Closure) -> Closure:
    """Make the closure of a ternary's branch that copies its optionals."""

    def copying(frame: Any) -> Any:
        value = branch(frame)
        return copied(value) if type(value) is Optional else value

    return copying


def _fallback(holder: Closure, name: str, other: Closure, *, unwraps: bool) -> Closure:
    """Make the closure of `holder.?name.orValue(other)`."""

    def fallback(frame: Any) -> Any:
        found = holder(frame)
        if type(found) is dict:
            return found[name] if name in found else other(frame)
        optional = index_optional(found, name, unwraps=unwraps)
        return optional.value if optional.present else other(frame)

    return fallback
