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
from dra_driver.selectors.values.types import type_name
from dra_driver.selectors.values.values import Optional

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
