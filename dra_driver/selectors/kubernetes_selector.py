"""A compiled selector of one Kubernetes version: devices come in, matches and the values of its parts go out.

It has a quick evaluator and a careful one, which counts the cost, and chooses between them. Run-time errors have the
server's texts.

Source: Kubernetes, package dynamic-resource-allocation/cel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.model.limits import CEL_COST
from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.checking.estimate import estimate
from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.evaluation.compiler import compile_program
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.evaluation.interpreter import Interpreter
from dra_driver.selectors.evaluation.program import Program
from dra_driver.selectors.readset import ReadSet, read_set
from dra_driver.selectors.syntax.depth import needs_room, room_for
from dra_driver.selectors.syntax.nodes import Node, height
from dra_driver.selectors.values.cancellation import QUICK_COST, cancellation_check
from dra_driver.selectors.values.values import CelAbort, CelError
from dra_driver.selectors.values.work import begin_work
from dra_driver.selectors.verdict import to_match

_FRAMES_PER_LEVEL = 4


class KubernetesSelector:
    """A compiled selector of one Kubernetes version."""

    __slots__ = (
        "_admissible",
        "_declarations",
        "_evaluate",
        "_frames",
        "_is_admissible",
        "_program",
        "_read_set",
        "expression",
        "max_cost",
    )

    def __init__(
        self,
        expression: str,
        declarations: Declarations,
        program: Program,
        is_admissible: Callable[[str], bool],
    ) -> None:
        self.expression = expression
        self.max_cost = estimate(program.root, newer=program.behaviour.newer_costs)
        self._is_admissible = is_admissible
        self._declarations = declarations
        self._program = program
        self._frames: int | None = None
        self._evaluate: Any = None
        self._admissible: bool | None = None
        self._read_set: ReadSet | None = None

    @property
    def output_type(self) -> str:
        """The type of the result, with protobuf names for the well-known types."""
        return self._program.root.type.long()

    @property
    def kubernetes(self) -> str:
        """The Kubernetes version whose rules apply."""
        return self._declarations.kubernetes

    @property
    def exact(self) -> bool:
        """Whether recorded verdicts of that version exist; without them its rules are derived."""
        return self._declarations.verdicts == "exact"

    @property
    def program(self) -> Program:
        """The checked tree, for tools that explain or lint."""
        return self._program

    @property
    def declarations(self) -> Declarations:
        """The names, functions and types that the expression could refer to."""
        return self._declarations

    @property
    def read_set(self) -> ReadSet:
        """The parts of a device that the expression reads."""
        if self._read_set is None:
            with room_for(self._room()):
                self._read_set = read_set(self._program.root)
        return self._read_set

    @property
    def admissible(self) -> bool:
        """Whether the API server accepts the expression in a new object, by environment, length and cost."""
        if self._admissible is None:
            self._admissible = self._is_admissible(self.expression)
        return self._admissible

    def matches(self, device: Mapping[str, Any], driver: str) -> bool:
        """Return whether a device matches.

        Args:
            device: a resource.k8s.io/v1 Device as a plain dict.
            driver: the name of the driver that publishes it, the default domain of its attributes.

        Raises:
            SelectorRuntimeError: The evaluation failed, which aborts scheduling.
        """
        return self.matches_view(prepare_device(device, driver))

    def matches_view(self, view: DeviceView) -> bool:
        """Return whether a device that was converted before matches.

        Raises:
            SelectorRuntimeError: The evaluation failed, which aborts scheduling.
        """
        self.check_view(view)
        evaluate = self._evaluate
        if self.max_cost > QUICK_COST and cancellation_check() is not None:
            evaluate = self.evaluate_carefully
        elif evaluate is None:
            evaluate = self._evaluate = self._choose()
        begin_work()
        try:
            value = evaluate(view)
        except (CelError, CelAbort) as error:
            raise SelectorRuntimeError(error.text) from None
        return value if value is True or value is False else to_match(value)

    def check_view(self, view: DeviceView) -> None:
        """Raise if the server can't convert the device.

        Raises:
            SelectorRuntimeError: The server can't convert it.
        """
        if view.problem is not None:
            raise SelectorRuntimeError(view.problem)
        if view.list_problem is not None and not self._declarations.converts_lists:
            raise SelectorRuntimeError(view.list_problem)
        if view.list_fault is not None and self._declarations.converts_lists:
            raise SelectorRuntimeError(view.list_fault)

    def can_read(self, view: DeviceView) -> bool:
        """Return whether the server can convert the device."""
        try:
            self.check_view(view)
        except SelectorRuntimeError:
            return False
        return True

    def interpreter(self, view: DeviceView) -> Interpreter:
        """Make the careful evaluator for one device."""
        return Interpreter(self._program, self._root(view))

    def trace(self, view: DeviceView) -> dict[Node, Any]:
        """Evaluate every part on one device and return the values and errors by node."""
        recorder = Interpreter(self._program, self._root(view), record=True)
        begin_work()
        with room_for(self._room()):
            try:
                recorder.run()
            except (CelError, CelAbort) as error:
                recorder.trace.setdefault(self._program.root, error)
        return recorder.trace

    def _root(self, view: DeviceView) -> dict[str, Any]:
        shows = self._declarations.shows_sharing
        return view.root(shows_sharing=shows, copies_quantities=self._program.changes_quantities)

    def _room(self) -> int:
        """Return the most stack frames that an evaluation can need."""
        if self._frames is None:
            self._frames = _FRAMES_PER_LEVEL * height(self._program.root)
        return self._frames

    def evaluate_carefully(self, view: DeviceView) -> Any:
        """Evaluate while counting the cost.

        The quick evaluator gives the same value wherever the estimate bounds the cost.

        Raises:
            CelError: The evaluation failed.
            CelAbort: The budget is spent.
        """
        with room_for(self._room()):
            return self.interpreter(view).run()

    def _choose(self) -> Any:
        """Choose between the quick evaluator and the careful one."""
        if self.max_cost > CEL_COST:
            return self.evaluate_carefully
        room = self._room()
        with room_for(room):
            quick = compile_program(self._program, shows_sharing=self._declarations.shows_sharing)
        if quick is None:
            return self.evaluate_carefully
        if not needs_room(room):
            return quick

        def evaluate(view: DeviceView) -> Any:
            with room_for(room):
                return quick(view)

        return evaluate
