"""Checks of the shapes of Kubernetes objects, before any other code reads them.

In: an object as a user wrote it. Out: nothing, or an error that names the invalid field. Fields that are null are
removed, as the API server does; fields that this program does not read are not checked.
"""

from __future__ import annotations

from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.views.objects.shapes import DEVICES, OBJECTS, ListShape, MapShape, ObjectShape, ScalarShape, Shape

_MAX_VALID = 65_536


class ShapeChecker:
    """Checks objects. A value that is part of several objects is checked once."""

    def __init__(self) -> None:
        # Valid values by the id() of their shape and their own; they are kept so that their ids stay unique.
        self._valid: dict[int, dict[int, Any]] = {}

    def knows(self, kind: str) -> bool:
        """Return whether there is a shape for a kind."""
        return kind in OBJECTS

    def check(self, kind: str, wire: Any, at: str) -> None:
        """Check an object of a kind; `at` is where it was found. Raises: InputError("input.object")."""
        self._check(OBJECTS[kind], wire, f"{at}: {kind} {_name(wire)}", "")

    def check_devices(self, wire: Any, at: str) -> None:
        """Check `spec.devices` of a claim. Raises: InputError("input.object")."""
        self._check(DEVICES, wire, at, "")

    def _check(self, shape: Shape, value: Any, at: str, path: str) -> None:
        match shape:
            case ObjectShape():
                self._record(shape, value, at, path)
            case MapShape():
                self._named(shape, _typed(value, dict, "a mapping", at, path), at, path)
            case ListShape():
                for number, entry in enumerate(_typed(value, list, "a list", at, path)):
                    self._check(shape.of, entry, at, f"{path}[{number}]")
            case ScalarShape():
                if type(value) not in shape.types:
                    raise _fault(shape.what, value, at, path)
                if shape.is_quantity:
                    _check_quantity(value, at, path)

    def _record(self, shape: ObjectShape, value: Any, at: str, path: str) -> None:
        held = _typed(value, dict, "a mapping", at, path)
        for name in [name for name, inner in held.items() if inner is None]:
            del held[name]
        for name in shape.required - held.keys():
            raise InputError("object", f"{at}: {path}.{name} is missing".replace(": .", ": "))
        for name, inner in held.items():
            if (of := shape.fields.get(name)) is not None:
                self._check(of, inner, at, f"{path}.{name}")

    def _named(self, shape: MapShape, held: dict[Any, Any], at: str, path: str) -> None:
        valid = self._valid.setdefault(id(shape), {})
        if valid.keys() >= set(map(id, held.values())) and all(type(name) is str for name in held):
            return
        for name, inner in held.items():
            if type(name) is not str:
                raise _fault("named by texts", name, at, path)
            self._check(shape.of, inner, at, f"{path}.{name[:80]}")
            if len(valid) < _MAX_VALID:
                valid[id(inner)] = inner


def _typed(value: Any, wanted: type, what: str, at: str, path: str) -> Any:
    if type(value) is not wanted:
        raise _fault(what, value, at, path)
    return value


def _check_quantity(value: Any, at: str, path: str) -> None:
    try:
        Quantity.parse(value if isinstance(value, str) else str(value))
    except QuantityError as error:
        raise InputError("object", f"{at}: {path.lstrip('.')}: {error.message}") from error


def _fault(what: str, value: Any, at: str, path: str) -> InputError:
    return InputError("object", f"{at}: {path.lstrip('.') or 'it'} is not {what} but {type(value).__name__}")


def _name(wire: Any) -> str:
    metadata = wire.get("metadata") if isinstance(wire, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name[:253] if isinstance(name, str) else "?"
