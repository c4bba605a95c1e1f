"""Fragments: expressions of any type, for interactive use.

In: text that need not be a selector (`device.driver.size()`), and devices. Out: its type, and its value on a device.
The only difference from a selector is that the result need not be a bool.
"""

from __future__ import annotations

from dra_driver.selectors.checking.checker import check
from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.checking.validators import validate
from dra_driver.selectors.engine import CompileErrorKind, SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.evaluation.interpreter import Interpreter
from dra_driver.selectors.evaluation.program import BadProgram, Program, construct
from dra_driver.selectors.library.rendering import kind_of, render
from dra_driver.selectors.syntax.depth import room_for
from dra_driver.selectors.syntax.nodes import Node, height
from dra_driver.selectors.syntax.parser import parse
from dra_driver.selectors.syntax.source import ExpressionText
from dra_driver.selectors.values.values import CelAbort, CelError
from dra_driver.selectors.values.work import begin_work

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
        return render(value), kind_of(value)


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
