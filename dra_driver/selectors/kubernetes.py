"""A compiled selector of one Kubernetes version: devices come in, matches and the values of its parts go out.

It has a quick evaluator and a careful one, which counts the cost, and chooses between them. Run-time errors have the
server's texts.

Source: Kubernetes, package dynamic-resource-allocation/cel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from dra_driver.base.errors import CEL_COST, CEL_EXPRESSION_BYTES, InputError
from dra_driver.base.versions import minor_of
from dra_driver.selectors.check.checker import check
from dra_driver.selectors.check.declarations import Declarations, declare
from dra_driver.selectors.check.estimate import estimate
from dra_driver.selectors.check.validators import CompilerPanic, validate
from dra_driver.selectors.engine import (
    CompileErrorKind,
    Environment,
    SelectorCompileError,
    SelectorRuntimeError,
    can_be_attribute,
    to_attribute,
    to_match,
)
from dra_driver.selectors.evaluate.compiler import compile_program
from dra_driver.selectors.evaluate.interpreter import Interpreter
from dra_driver.selectors.evaluate.program import BadProgram, DeviceView, Program, construct, prepare_device
from dra_driver.selectors.parse.lexer import ExpressionText, SyntaxFault, needs_room, room_for
from dra_driver.selectors.parse.parser import parse
from dra_driver.selectors.parse.tree import Node, height
from dra_driver.selectors.reads import ReadSet, read_set
from dra_driver.selectors.values.values import (
    QUICK_COST,
    CelAbort,
    CelError,
    begin_work,
    cancellation_check,
    check_cancelled,
)

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
        value = self._evaluated(view)
        return value if value is True or value is False else to_match(value)

    def attribute_of_view(self, view: DeviceView) -> dict[str, Any]:
        """Return the value of an expression that was compiled to give an attribute, as an attribute in a ResourceSlice.

        Raises:
            SelectorRuntimeError: The evaluation failed, or an attribute can't have such a value.
        """
        return to_attribute(self._evaluated(view))

    def _evaluated(self, view: DeviceView) -> Any:
        self.check_view(view)
        evaluate = self._evaluate
        if self.max_cost > QUICK_COST and cancellation_check() is not None:
            evaluate = self.evaluate_carefully
        elif evaluate is None:
            evaluate = self._evaluate = self._choose()
        begin_work()
        try:
            return evaluate(view)
        except (CelError, CelAbort) as error:
            raise SelectorRuntimeError(error.text) from None

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


# The engine that decides: it compiles DRA selectors as one Kubernetes version does.

_SHALLOW = 200  # characters; a shorter expression can't nest so deeply that it needs more stack
_FRAMES_PER_CHARACTER = 8
_MAX_FRAMES = 40_000


def _frames(expression: str) -> int:
    return 0 if len(expression) <= _SHALLOW else min(len(expression) * _FRAMES_PER_CHARACTER, _MAX_FRAMES)


class KubernetesEngine:
    """Compiles selectors for one version and one set of feature gates."""

    name = "kubernetes"
    caveat = None

    def __init__(self, kubernetes: str = "1.35", *, gates: Mapping[str, bool] | None = None) -> None:
        self._declarations = {environment: declare(kubernetes, gates, environment) for environment in ("stored", "new")}

    @property
    def declarations(self) -> Declarations:
        """The names, functions and types that stored expressions can refer to."""
        return self._declarations["stored"]

    def compile(
        self,
        expression: str,
        *,
        environment: Environment = "stored",
        gives: Literal["match", "attribute"] = "match",
    ) -> KubernetesSelector:
        """Compile one expression; equal arguments give equal selectors.

        Args:
            expression: the CEL text.
            environment: "stored" for what the scheduler evaluates, "new" for what a new or changed object may contain.
            gives: "attribute" for an expression that derives an attribute of a device.

        Raises:
            SelectorCompileError: The expression does not compile; the text is Kubernetes' own.
        """
        check_cancelled()
        begin_work()
        declarations = self._declarations[environment]
        with room_for(_frames(expression)):
            root = _checked(expression, declarations, gives)
            try:
                program = construct(root, declarations.kubernetes)
            except CompilerPanic as panic:
                raise _crashed(panic, "bytes as the key of a map of constants. Nothing finds bytes in a map") from panic
            except BadProgram as bad:
                text = f"program instantiation failed: {bad}"
                raise SelectorCompileError(CompileErrorKind.INSTANTIATION, text) from bad
            return KubernetesSelector(expression, declarations, program, self.is_admissible)

    def is_admissible(self, expression: str) -> bool:
        """Return whether the API server accepts the expression in a new object."""
        if len(expression.encode("utf-8", "surrogatepass")) > CEL_EXPRESSION_BYTES:
            return False
        try:
            return self.compile(expression, environment="new").max_cost <= CEL_COST
        except SelectorCompileError:
            return False


def _checked(expression: str, declarations: Declarations, gives: Literal["match", "attribute"]) -> Node:
    root, faults = parse(expression, declarations.macros, quotes_fields=declarations.quotes_fields)
    if root is not None:
        check_cancelled()
        faults = check(root, declarations)
        if not faults:
            faults = _validated(root)
    if root is None or faults:
        raise _refused(expression, faults)
    if gives == "attribute" and not can_be_attribute(root.type):
        text = (
            "must evaluate to a primitive scalar (string, integer, boolean, semver) or a list of these scalars, not "
            f"{root.type.long()}"
        )
        raise SelectorCompileError(CompileErrorKind.RESULT_TYPE, text)
    if gives == "match" and root.type not in declarations.result_types:
        text = f"must evaluate to bool or the unknown type, not {root.type.long()}"
        raise SelectorCompileError(CompileErrorKind.RESULT_TYPE, text)
    return root


def _validated(root: Node) -> list[SyntaxFault]:
    try:
        return validate(root)
    except CompilerPanic as panic:
        why = "an optional entry ([?x], {?k: x}) of unknown type"
        raise _crashed(
            panic, f"{why}. The API server does not accept it; write the entry with optional.of() or orValue()"
        ) from panic


def _crashed(panic: CompilerPanic, why: str) -> SelectorCompileError:
    text = f"Kubernetes' own compiler crashes on this expression (panic: {panic}): {why}"
    return SelectorCompileError(CompileErrorKind.PANIC, text)


def _refused(expression: str, faults: list[SyntaxFault]) -> SelectorCompileError:
    report, position = ExpressionText(expression).report(faults)
    grammar = any(fault.message.startswith("Syntax error") for fault in faults)
    kind = CompileErrorKind.SYNTAX if grammar else CompileErrorKind.TYPE
    return SelectorCompileError(kind, f"compilation failed: {report}", position=position)


# The batch check, for other programs: one JSON object comes in, one goes out.

_FIELDS: dict[str, tuple[type | tuple[type, ...], Any]] = {
    "driver": (str, ""),
    "devices": (list, []),
    "kubernetes": (str, "1.35"),
    "gates": (dict, {}),
    "environment": (str, "stored"),
}


def has_defaults(line: Mapping[str, Any]) -> bool:
    """Return whether a first line sets defaults for the others, and is not an answerable line with a mistake."""
    return "expression" not in line and "id" not in line and not line.keys().isdisjoint(_FIELDS)


class BatchChecker:
    """Checks lines that share defaults. The devices of the defaults are converted only once.

    `refuse` raises an InputError for a device that can't be used; it gets the device and its place in the line.
    """

    def __init__(self, defaults: Mapping[str, Any], refuse: Callable[[Any, str], None] | None = None) -> None:
        self._defaults = defaults
        self._refuse = refuse
        self._views: dict[tuple[int, str], tuple[Any, list[DeviceView]]] = {}
        self._engines: dict[Any, KubernetesEngine] = {}

    def check(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Check one line.

        Raises:
            InputError: The line does not follow the format.
        """
        expression = line.get("expression")
        if not isinstance(expression, str):
            raise InputError("batch", "expression must be a string")
        driver, devices, kubernetes, gates, environment = (self._field(line, name) for name in _FIELDS)
        if environment not in {"stored", "new"}:
            raise InputError("batch", "environment must be stored or new")
        engine = self._engine(kubernetes, gates)
        verdict: dict[str, Any] = {
            "id": line.get("id"),
            "compileError": None,
            "kind": None,
            "type": None,
            "maxCost": None,
            "admissible": engine.is_admissible(expression),
            "results": [],
        }
        try:
            selector = engine.compile(expression, environment=environment)
        except SelectorCompileError as error:
            return {**verdict, "compileError": error.text, "kind": str(error.kind)}
        results = [_result(selector, view) for view in self._prepared(devices, driver)]
        return {**verdict, "type": selector.output_type, "maxCost": selector.max_cost, "results": results}

    def _field(self, line: Mapping[str, Any], name: str) -> Any:
        kind, default = _FIELDS[name]
        value = line.get(name, self._defaults.get(name, default))
        if not isinstance(value, kind):
            raise InputError("batch", f"{name} has the wrong type")
        return value

    def _engine(self, kubernetes: str, gates: dict[str, Any]) -> KubernetesEngine:
        if not all(isinstance(on, bool) for on in gates.values()):
            raise InputError("batch", "gates must be true or false")
        minor = minor_of(kubernetes)
        key = f"1.{minor}" if minor else kubernetes, tuple(sorted(gates.items()))
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = KubernetesEngine(key[0], gates=gates)
        return engine

    def _prepared(self, devices: list[Any], driver: str) -> list[DeviceView]:
        if devices is not self._defaults.get("devices"):
            return self._convert(devices, driver)
        key = id(devices), driver
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = devices, self._convert(devices, driver)
        return known[1]

    def _convert(self, devices: list[Any], driver: str) -> list[DeviceView]:
        if not all(isinstance(device, dict) for device in devices):
            raise InputError("batch", "devices must be objects")
        if self._refuse is not None:
            for number, device in enumerate(devices):
                self._refuse(device, f"devices[{number}]")
        return [prepare_device(device, driver) for device in devices]


def _result(selector: KubernetesSelector, view: DeviceView) -> dict[str, Any]:
    try:
        return {"match": selector.matches_view(view)}
    except SelectorRuntimeError as error:
        return {"error": error.text}
