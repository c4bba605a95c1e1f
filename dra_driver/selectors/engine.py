"""The interface between callers that need a verdict and the two engines that can produce one.

In: a CEL expression. Out: a compiled `Selector`, or one of two errors. `KubernetesEngine` decides; `CelPythonEngine`
is the portable second opinion. Code outside `selectors` should need no more than these names.

Source: Kubernetes, package dynamic-resource-allocation/cel (compile, evaluate, the texts of their errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Protocol

from dra_driver.base.errors import SelectorError
from dra_driver.base.versions import Semver
from dra_driver.selectors.values.types import ANY, BOOL, DYN, INT, STRING, Type, type_name
from dra_driver.selectors.values.values import (
    CelQuantity,
    Cidr,
    Concat,
    Duration,
    Ip,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Url,
    unfold,
)

Environment = Literal["stored", "new"]


class CompileErrorKind(StrEnum):
    """The stage that refused an expression."""

    SYNTAX = "syntax"
    TYPE = "type"
    RESULT_TYPE = "result-type"
    INSTANTIATION = "instantiation"
    PANIC = "panic"  # Kubernetes' own compiler crashes on it


class SelectorCompileError(SelectorError):
    """The expression does not compile.

    `text` is Kubernetes' whole message; `position` is the (line, column), both from 1, of the first fault, or None if
    the message names no position.
    """

    def __init__(self, kind: CompileErrorKind, text: str, *, position: tuple[int, int] | None = None) -> None:
        super().__init__(str(kind), text)
        self.kind = kind
        self.text = text
        self.position = position


class SelectorRuntimeError(SelectorError):
    """The evaluation failed on this device, which aborts the scheduling of the pod. `text` is Kubernetes' message."""

    def __init__(self, text: str) -> None:
        super().__init__("runtime", text)
        self.text = text


class Selector(Protocol):
    """A compiled expression. It can be evaluated on any number of devices and never changes."""

    @property
    def expression(self) -> str:
        """The source text."""

    @property
    def output_type(self) -> str | None:
        """The type of the result as the checker prints it; None where the engine has no checker."""

    @property
    def max_cost(self) -> int | None:
        """The worst-case cost in CEL cost units; None where the engine makes no estimate."""

    @property
    def admissible(self) -> bool | None:
        """Whether the API server accepts the expression in a new object; None if the engine does not know."""

    def matches(self, device: Mapping[str, Any], driver: str) -> bool:
        """Return whether a device matches.

        Args:
            device: a resource.k8s.io/v1 Device as a plain dict.
            driver: the name of the driver that publishes it, the default domain of its attributes.

        Raises:
            SelectorRuntimeError: The evaluation failed.
        """


class Engine(Protocol):
    """Compiles selectors."""

    @property
    def name(self) -> str:
        """The engine's name on the command line (`--engine`)."""

    @property
    def caveat(self) -> str | None:
        """What a reader must know before trusting a verdict; None for the engine that decides."""

    def compile(self, expression: str, *, environment: Environment = "stored") -> Selector:
        """Compile one expression. Pure: the same text gives an equal selector, in bounded time, whatever the text is.

        Args:
            expression: the CEL text.
            environment: "stored" for what the scheduler evaluates, "new" for what a new or changed object may contain.

        Raises:
            SelectorCompileError: The expression does not compile in that environment.
        """


# From the value of an expression to a match or an error.

NOTHING = "optional.none() dereference"
_NATIVE = {
    "string": "unsupported native conversion from string to 'bool'",
    "int": "unsupported type conversion from 'int' to bool",
    "uint": "unsupported type conversion from 'uint' to bool",
    "double": "type conversion error from Double to 'bool'",
    "map": "type conversion error from map to 'bool'",
    "list": "type conversion error from list to 'bool'",
    "bytes": "unsupported native conversion from bytes to 'bool'",
    "null_type": "type conversion error from 'null_type' to 'bool'",
    "kubernetes.Semver": "type conversion error from 'Semver' to 'bool'",
    "kubernetes.Quantity": "type conversion error from 'Quantity' to 'bool'",
    "kubernetes.URL": "type conversion error from 'URL' to 'bool'",
}


def to_match(value: Any) -> bool:
    """Return whether the value means a match.

    Raises:
        SelectorRuntimeError: The value is not a bool.
    """
    if value is True or value is False:
        return bool(value)
    name = inner = type_name(value)
    while type(value) is Optional:
        if not value.present:
            raise SelectorRuntimeError(f"CEL result of type {name} could not be converted to bool: {NOTHING}")
        value = value.value
        inner = type_name(value)
        if value is True or value is False:
            return bool(value)
    reason = _NATIVE.get(inner, f"type conversion error from '{inner}' to 'bool'")
    raise SelectorRuntimeError(f"CEL result of type {name} could not be converted to bool: {reason}")


# From the value of an expression to an attribute of a device (DRADerivedAttributes).

_ABSENT = object()  # what an optional without a value holds
_ELEMENTS = frozenset({BOOL, INT, STRING, ANY, DYN})
_SEMVER = "kubernetes.Semver"
_ATTRIBUTE_KINDS: dict[type, tuple[str, str]] = {  # how the API and how a refusal calls them
    bool: ("bool", "bool"),
    int: ("int", "int"),
    str: ("string", "string"),
    Semver: ("version", "semver"),
}
_GO_VALUES: dict[type, str] = {
    float: "float64",
    Uint: "uint64",
    bytes: "[]uint8",
    type(None): "structpb.NullValue",
    Duration: "time.Duration",
    Timestamp: "time.Time",
    CelQuantity: "*resource.Quantity",
    Ip: "netip.Addr",
    Cidr: "netip.Prefix",
    Url: "*url.URL",
    list: "[]ref.Val",
    Concat: "[]ref.Val",
}


def can_be_attribute(type_: Type) -> bool:
    """Return whether the scheduler takes values of a type for a derived attribute."""
    if type_.kind == "list" and len(type_.params) == 1:
        type_ = type_.params[0]
    return type_ in _ELEMENTS or type_.name == _SEMVER


def to_attribute(value: Any) -> dict[str, Any]:
    """Return a value as an attribute in a ResourceSlice: {"int": 4}, {"strings": ["a", "b"]}.

    Raises:
        SelectorRuntimeError: No attribute can have the value.
    """
    value = _native(value)
    if type(value) in _ATTRIBUTE_KINDS:
        return {_ATTRIBUTE_KINDS[type(value)][0]: _written(value)}
    if not isinstance(value, list | Concat):
        raise SelectorRuntimeError(f"unsupported CEL return type: {_go_type(value)}")
    elements = [_native(element) for element in unfold(value)]
    if not elements:
        return {"strings": []}
    kind = type(elements[0])
    if kind not in _ATTRIBUTE_KINDS:
        raise SelectorRuntimeError(f"unsupported list element type: {_go_type(elements[0])}")
    name, word = _ATTRIBUTE_KINDS[kind]
    for index, element in enumerate(elements):
        if type(element) is not kind:
            reason = f"expected list element at index {index} to be {word}, got {_go_type(element)}"
            raise SelectorRuntimeError(reason)
    return {f"{name}s": [_written(element) for element in elements]}


def _native(value: Any) -> Any:
    """Return what an optional holds, and the name of a type, as Go's own values are."""
    while type(value) is Optional:
        value = value.value if value.present else _ABSENT
    return value.name if type(value) is TypeValue else value


def _written(value: Any) -> Any:
    return str(value) if type(value) is Semver else value


def _go_type(value: Any) -> str:
    known = {bool: "bool", int: "int64", str: "string", Semver: "semver.Version"} | _GO_VALUES
    return "<nil>" if value is _ABSENT else known.get(type(value), "map[ref.Val]ref.Val")
