"""Closures for loops and bindings.

In: comprehension nodes. Out: closures that run Python loops over the frame. The error with which a loop ends follows
the server's accumulator: quantifiers keep the first error and absorb it if an element decides; collecting loops keep
the first error of an element, and an error of a condition replaces it.

Source: cel-go's fold with its lazy accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.selectors.check.checker import check
from dra_driver.selectors.check.declarations import Declarations
from dra_driver.selectors.check.validators import validate
from dra_driver.selectors.engine import CompileErrorKind, SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.interpreter import Interpreter
from dra_driver.selectors.evaluate.program import BadProgram, DeviceView, Program, construct
from dra_driver.selectors.functions.formats import render
from dra_driver.selectors.functions.functions import bound, iterate, iterate_pairs
from dra_driver.selectors.parse.lexer import ExpressionText, room_for
from dra_driver.selectors.parse.macros import BINDINGS
from dra_driver.selectors.parse.parser import parse
from dra_driver.selectors.parse.tree import Call, Comprehension, ListLiteral, Node, height
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.messages import insert
from dra_driver.selectors.values.types import type_name
from dra_driver.selectors.values.values import CelAbort, CelError, CelMap, begin_work

Closure = Callable[[Any], Any]
_UNSET = object()


class Folds:
    """The part of the compiler that handles local variables. The compiler itself supplies `emit`."""

    def __init__(self) -> None:
        self._slots: dict[str, list[tuple[int, Closure | None]]] = {}
        self._next = 1  # slot 0 holds the view

    def emit(self, node: Node) -> Closure:
        """Make the closure of a node."""
        raise NotImplementedError

    def frame_size(self) -> int:
        """Return the number of slots in a frame."""
        return self._next

    def is_local(self, name: str) -> bool:
        """Return whether a name is a local variable here."""
        return bool(self._slots.get(name))

    def local(self, name: str) -> Closure:
        """Make the closure that reads a local variable; it initialises a binding on first use."""
        slot, init = self._slots[name][-1]
        if init is None:
            return lambda frame: frame[slot]

        def read(frame: Any) -> Any:
            value = frame[slot]
            if value is _UNSET:
                try:
                    value = frame[slot] = bound(init(frame))
                except CelError as error:
                    frame[slot] = error
                    raise
            elif type(value) is CelError:
                raise value.with_traceback(None)  # each raise adds a line to it
            return value

        return read

    def _declare(self, name: str, init: Closure | None = None) -> int:
        slot = self._next
        self._next += 1
        self._slots.setdefault(name, []).append((slot, init))
        return slot

    def _forget(self, name: str) -> None:
        self._slots[name].pop()

    def comprehension(self, node: Comprehension) -> Closure:
        """Make the closure of a macro."""
        if node.macro in BINDINGS:
            return self._bind(node)
        holder = self.emit(node.range)
        first = self._declare(node.var)
        second = self._declare(node.var2) if node.var2 else 0
        try:
            if node.macro in {"all", "exists"}:
                assert isinstance(node.step, Call)  # noqa: S101
                return _quantifier(
                    _Loop(holder, first, second), self.emit(node.step.args[1]), decisive=node.macro == "exists"
                )
            condition, step = _parts(node)
            predicate = self.emit(condition) if condition is not None else None
            if node.macro in {"exists_one", "existsOne"}:
                assert predicate is not None  # noqa: S101
                return _count_one(_Loop(holder, first, second), predicate)
            assert isinstance(step, Call)  # noqa: S101
            if node.macro == "transformMap":
                return _map_builder(_Loop(holder, first, second), predicate, self.emit(step.args[2]), first)
            added = step.args[1]
            assert isinstance(added, ListLiteral)  # noqa: S101
            return _list_builder(_Loop(holder, first, second), predicate, self.emit(added.elements[0]))
        finally:
            if node.var2:
                self._forget(node.var2)
            self._forget(node.var)

    def _bind(self, node: Comprehension) -> Closure:
        init = self.emit(node.init)
        slot = self._declare(node.accu, init)
        result = self.emit(node.result)
        self._forget(node.accu)

        def bind(frame: Any) -> Any:
            frame[slot] = _UNSET
            return result(frame)

        return bind


def _parts(node: Comprehension) -> tuple[Node | None, Node]:
    """Return the condition of a collecting loop, or None if it has none, and its unconditional step."""
    step = node.step
    assert isinstance(step, Call)  # noqa: S101
    if step.function == "_?_:_":
        return step.args[0], step.args[1]
    return None, step


class _Loop:
    """What a loop iterates over, and the slots of its variables (slot 0 means that there is no second variable)."""

    __slots__ = ("first", "items", "second")

    def __init__(self, holder: Closure, first: int, second: int) -> None:
        self.first = first
        self.second = second
        walk: Callable[[Any], list[Any]] = iterate_pairs if second else iterate
        self.items: Callable[[Any], list[Any]] = lambda frame: walk(holder(frame))

    def place(self, frame: list[Any], item: Any) -> None:
        """Put one element, or one pair, into the frame."""
        if self.second:
            frame[self.first], frame[self.second] = item
        else:
            frame[self.first] = item


def _quantifier(loop: _Loop, predicate: Closure, *, decisive: bool) -> Closure:
    items, place = loop.items, loop.place

    def quantify(frame: Any) -> bool:
        failed: CelError | None = None
        for item in items(frame):
            place(frame, item)
            try:
                value = predicate(frame)
            except CelError as error:
                failed = failed or error
                continue
            if value is decisive:
                return bool(decisive)
            if type(value) is not bool:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if failed is not None:
            raise failed
        return not decisive

    return quantify


def _count_one(loop: _Loop, predicate: Closure) -> Closure:
    items, place = loop.items, loop.place

    def count(frame: Any) -> bool:
        failed: CelError | None = None
        found = 0
        for item in items(frame):
            place(frame, item)
            try:
                if _holds(predicate, frame):
                    found += 1
            except CelError as error:
                failed = error
        if failed is not None:
            raise failed
        return found == 1

    return count


def _holds(predicate: Closure, frame: Any) -> bool:
    value = predicate(frame)
    if value is True or value is False:
        return bool(value)
    raise CelError(NO_SUCH_OVERLOAD)


def _list_builder(loop: _Loop, predicate: Closure | None, element: Closure) -> Closure:
    items, place = loop.items, loop.place

    def build(frame: Any) -> list[Any]:
        failed: CelError | None = None
        made: list[Any] = []
        for item in items(frame):
            place(frame, item)
            try:
                if predicate is not None and not _holds(predicate, frame):
                    continue
            except CelError as error:
                failed = error
                continue
            try:
                made.append(element(frame))
            except CelError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return made

    return build


def _map_builder(loop: _Loop, predicate: Closure | None, value: Closure, key: int) -> Closure:
    items, place = loop.items, loop.place

    def build(frame: Any) -> CelMap:
        failed: CelError | None = None
        made = CelMap({})
        for item in items(frame):
            place(frame, item)
            try:
                if predicate is not None and not _holds(predicate, frame):
                    continue
            except CelError as error:
                failed = error
                continue
            try:
                insert(made, frame[key], value(frame))
            except CelError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return made

    return build


# Fragments: expressions of any type, for interactive use.

_FRAMES = 40_000
_SHALLOW = 200  # characters
_FRAMES_PER_LEVEL = 4


class Fragment:
    """A compiled fragment."""

    __slots__ = ("_declarations", "_program")

    def __init__(self, program: Program, declarations: Declarations) -> None:
        self._program = program
        self._declarations = declarations

    @property
    def type(self) -> str:
        """The type as the checker prints it."""
        return self._program.root.type.long()

    @property
    def root(self) -> Node:
        """The checked tree."""
        return self._program.root

    def value(self, view: DeviceView) -> tuple[str, str]:
        """Return the printed value on a device, and its type there.

        Raises:
            SelectorRuntimeError: The evaluation failed.
        """
        if view.problem is not None:
            raise SelectorRuntimeError(view.problem)
        begin_work()
        root = view.root(shows_sharing=self._declarations.shows_sharing)
        with room_for(_FRAMES_PER_LEVEL * height(self._program.root)):
            try:
                value = Interpreter(self._program, root).run()
            except (CelError, CelAbort) as error:
                raise SelectorRuntimeError(error.text) from None
        return render(value), type_name(value)


def compile_fragment(text: str, declarations: Declarations) -> Fragment:
    """Compile a fragment.

    Raises:
        SelectorCompileError: The fragment does not compile.
    """
    with room_for(_FRAMES if len(text) > _SHALLOW else 0):
        root, faults = parse(text, declarations.macros, quotes_fields=declarations.quotes_fields)
        if root is not None:
            faults = check(root, declarations) or validate(root)
        if root is None or faults:
            report, position = ExpressionText(text).report(faults)
            grammar = any(fault.message.startswith("Syntax error") for fault in faults)
            kind = CompileErrorKind.SYNTAX if grammar else CompileErrorKind.TYPE
            raise SelectorCompileError(kind, f"compilation failed: {report}", position=position)
        try:
            return Fragment(construct(root, declarations.kubernetes), declarations)
        except BadProgram as bad:
            text = f"program instantiation failed: {bad}"
            raise SelectorCompileError(CompileErrorKind.INSTANTIATION, text) from bad
