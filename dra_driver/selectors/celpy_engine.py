"""The second opinion: cel-python behind the same interface.

In: expressions and devices, as for the engine that decides. Out: matches and errors of portable CEL. It has no type
checker, no cost estimate and no optional syntax, so its answer is never the scheduler's verdict. It is an independent
reading of the language core, with the Kubernetes functions taken from our own libraries.

This module alone imports celpy, and only on first use (the import takes 0.2 s).

Source: docs/decisions/0005.
"""

# ruff: noqa: SIM905  (names read better as words than as a column of quotes)

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from dra_driver.selectors.engine import CompileErrorKind, Environment, SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.functions.functions import FUNCTIONS, TABLES
from dra_driver.selectors.functions.lists import is_list
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD, equal
from dra_driver.selectors.values.values import CelAbort, CelError, Uint, is_map, map_items, unfold

# Functions that cel-python implements itself. If they were replaced by ours, its opinion would be less independent.
_OWN = frozenset(
    "bool bytes double duration int string timestamp uint size contains startsWith endsWith matches type dyn "
    "getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth "
    "getSeconds min hasValue value".split()
)


class OpaqueValue:
    """A value whose type cel-python does not know; it passes through cel-python unchanged."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> Any:
        try:
            return _celtypes().BoolType(equal(self.value, _from_celpy(other)))
        except CelError as error:
            raise TypeError(error.text) from error

    def __hash__(self) -> int:
        return hash(type(self.value))


class CelPythonSelector:
    """An expression compiled by cel-python. It has no result type, cost or admission verdict."""

    output_type = None
    max_cost = None
    admissible = None

    __slots__ = ("_program", "expression")

    def __init__(self, expression: str, program: Any) -> None:
        self.expression = expression
        self._program = program

    def matches(self, device: Mapping[str, Any], driver: str) -> bool:
        """Return whether a device matches.

        Raises:
            SelectorRuntimeError: cel-python reports an error, or the result is not a bool.
        """
        return self.matches_view(prepare_device(device, driver))

    def matches_view(self, view: DeviceView) -> bool:
        """Return whether a device that was converted before matches.

        Raises:
            SelectorRuntimeError: cel-python reports an error, or the result is not a bool.
        """
        import celpy  # noqa: PLC0415

        if view.problem is not None:
            raise SelectorRuntimeError(view.problem)
        try:
            result = self._program.evaluate({"device": _device(view)})
        except (celpy.CELEvalError, CelError, CelAbort) as error:
            raise SelectorRuntimeError(str(error.args[0] if error.args else error)) from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            # cel-python lets some errors of its operands escape as plain Python exceptions.
            raise SelectorRuntimeError(f"{type(error).__name__}: {error}") from error
        value = _from_celpy(result)
        if value is True or value is False:
            return bool(value)
        raise SelectorRuntimeError(f"result is a {type(result).__name__}, not a bool")


class CelPythonEngine:
    """Compiles selectors with cel-python."""

    name = "celpy"
    caveat = "portable CEL, not the scheduler's verdict"

    def compile(self, expression: str, *, environment: Environment = "stored") -> CelPythonSelector:
        """Compile one expression; `environment` makes no difference here.

        Raises:
            SelectorCompileError: cel-python can't parse the expression.
        """
        import celpy  # noqa: PLC0415

        del environment
        runner = celpy.Environment()
        try:
            program = runner.program(runner.compile(expression), functions=_functions())
        except celpy.CELParseError as error:
            position = (error.line, error.column) if error.line is not None else None
            text = f"cel-python: {error.args[0] if error.args else 'syntax error'}"
            raise SelectorCompileError(CompileErrorKind.SYNTAX, text, position=position) from error
        except (RecursionError, ValueError, TypeError, KeyError) as error:
            text = f"cel-python: {type(error).__name__}: {error}"
            raise SelectorCompileError(CompileErrorKind.SYNTAX, text) from error
        return CelPythonSelector(expression, program)


def _celtypes() -> Any:
    from celpy import celtypes  # noqa: PLC0415

    return celtypes


@lru_cache(maxsize=1)
def _functions() -> dict[str, Callable[..., Any]]:
    """Return our functions that cel-python lacks: all those that are called by a plain name."""
    return {name: _carry(name) for name in TABLES if name.isidentifier() and name not in _OWN}


def _carry(name: str) -> Callable[..., Any]:
    function = FUNCTIONS[name]

    def call(*args: Any) -> Any:
        try:
            return _to_celpy(function(*[_from_celpy(arg) for arg in args]))
        except (CelError, CelAbort) as error:
            from celpy import CELEvalError  # noqa: PLC0415

            return CELEvalError(error.text, CelError, (error.text,))

    call.__name__ = name
    return call


@lru_cache(maxsize=1)
def _domains() -> type:
    celtypes = _celtypes()

    class CelpyDomains(celtypes.MapType):  # type: ignore[misc, name-defined]
        """A map that returns an empty map for an unknown domain."""

        def __getitem__(self, key: Any) -> Any:
            try:
                return super().__getitem__(key)
            except KeyError:
                return celtypes.MapType()

    return CelpyDomains


def _device(view: DeviceView) -> Any:
    celtypes, domains = _celtypes(), _domains()
    fields = celtypes.MapType()
    fields[celtypes.StringType("driver")] = celtypes.StringType(view.driver)
    fields[celtypes.StringType("allowMultipleAllocations")] = celtypes.BoolType(view.shared)
    for field, held in (("attributes", view.attributes), ("capacity", view.capacity)):
        made = domains()
        for domain, names in held.items():
            made[celtypes.StringType(domain)] = _to_celpy(names)
        fields[celtypes.StringType(field)] = made
    return fields


def _to_celpy(value: Any) -> Any:
    celtypes = _celtypes()
    kind = type(value)
    if value is None:
        return None
    simple = {
        bool: celtypes.BoolType,
        int: celtypes.IntType,
        Uint: celtypes.UintType,
        float: celtypes.DoubleType,
        str: celtypes.StringType,
        bytes: celtypes.BytesType,
    }.get(kind)
    if simple is not None:
        return simple(value)
    if is_list(value):
        return celtypes.ListType([_to_celpy(element) for element in unfold(value)])
    if is_map(value):
        return celtypes.MapType({_to_celpy(key): _to_celpy(item) for key, item in map_items(value)})
    return OpaqueValue(value)


def _from_celpy(value: Any) -> Any:
    celtypes = _celtypes()
    if isinstance(value, OpaqueValue):
        return value.value
    if value is None or isinstance(value, bool):
        return value
    for kind, convert in (
        (celtypes.BoolType, bool),
        (celtypes.UintType, Uint),
        (celtypes.IntType, int),
        (celtypes.DoubleType, float),
        (celtypes.StringType, str),
        (celtypes.BytesType, bytes),
    ):
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, celtypes.ListType):
        return [_from_celpy(element) for element in value]
    if isinstance(value, celtypes.MapType):
        return {_from_celpy(key): _from_celpy(item) for key, item in value.items()}
    if isinstance(value, Exception):
        raise CelError(str(value.args[0]) if value.args else NO_SUCH_OVERLOAD)
    return value
