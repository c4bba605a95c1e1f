"""Rules: what the API server changes in one kind of object before it is stored, and what it refuses.

In: the new object, the stored one if there is one, and the server's version and gates. Out: an object with defaults
filled in and fields of switched-off gates removed (`prepare`), every fault at once (`check`), and fields that are
written even when they are empty (`finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.embedded.api_rules.refusals import Cause
from dra_driver.embedded.api_rules.shape import Shape
from dra_driver.model.wire import Wire


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may depend on besides the object. `now` is in RFC 3339 with whole seconds."""

    minor: int
    gates: frozenset[str]
    now: str
    namespace_labels: Callable[[str], Mapping[str, str]]


@dataclass(slots=True)
class Faults:
    """Collects every fault of one object."""

    causes: list[Cause] = field(default_factory=list)

    def invalid(self, path: str, value: Any, why: str) -> None:
        """Record a value that is not allowed."""
        self.causes.append(Cause(path, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}"))

    def required(self, path: str, why: str = "") -> None:
        """Record a value that is missing."""
        self.causes.append(Cause(path, "FieldValueRequired", f"Required value{': ' + why if why else ''}"))

    def too_many(self, path: str, count: int, maximum: int) -> None:
        """Record a list or map that is too long."""
        self.causes.append(
            Cause(
                path, "FieldValueTooMany", f"Too many: {count}: must have at most {maximum} item{'s' * (maximum != 1)}"
            )
        )

    def too_long(self, path: str, maximum: int) -> None:
        """Record a text that is too long."""
        self.causes.append(Cause(path, "FieldValueTooLong", f"Too long: may not be more than {maximum} bytes"))

    def duplicate(self, path: str, value: Any) -> None:
        """Record a key that occurs twice."""
        self.causes.append(Cause(path, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}"))

    def forbidden(self, path: str, why: str) -> None:
        """Record a field that must not be set."""
        self.causes.append(Cause(path, "FieldValueForbidden", f"Forbidden: {why}"))

    def unsupported(self, path: str, value: Any, known: tuple[str, ...]) -> None:
        """Record a value that is not one of the supported ones."""
        listed = ", ".join(f'"{k}"' for k in known)
        message = f"Unsupported value: {_shown(value)}: supported values: {listed}"
        self.causes.append(Cause(path, "FieldValueNotSupported", message))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _unchanged(new: Wire, old: Wire | None, context: RuleContext) -> None:
    """Leave the object as it is."""


def _finished(wire: Wire) -> None:
    """Leave the object as it is."""


def _no_faults(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    """Accept every object."""


@dataclass(frozen=True, slots=True)
class KindRules:
    """The rules of one kind. If `shape` is None, every field is kept (for kinds that are only stored)."""

    shape: Shape | None = None
    prepare: Callable[[Wire, Wire | None, RuleContext], None] = _unchanged
    check: Callable[[Wire, Wire | None, RuleContext, Faults], None] = _no_faults
    check_status: Callable[[Wire, Wire, RuleContext, Faults], None] = _no_faults
    finish: Callable[[Wire], None] = _finished
