"""Shape: JSON decoded as a typed API server does it: unknown fields dropped, wrong types refused, null read as absent.

In: JSON and a description of the type. Out: a new value. The description is data: a dict describes an object, a
one-element list a list, `Map(x)` a map, and a Python type a scalar; `QUANTITY` and `TIME` are texts that are stored in
their canonical form, and `ANY` keeps the value as it is.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dra_driver.embedded.api_rules.refusals import bad_request
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError

Shape = Any
ANY = object()
QUANTITY = object()
TIME = object()


@dataclass(frozen=True, slots=True)
class Map:
    """A map from text to values of one type."""

    value: Shape


_GO = {str: "string", int: "int64", bool: "bool"}


def decode(value: Any, shape: Shape, path: str = "") -> Any:
    """Return `value` as a value of the type `shape`. Raises: ApiRefusal 400 with the field whose type is wrong."""
    if shape is ANY:
        return copy.deepcopy(value)
    if isinstance(shape, dict):
        _expect(isinstance(value, dict), value, path, "object")
        return {
            key: decode(value[key], part, f"{path}.{key}" if path else key)
            for key, part in shape.items()
            if value.get(key) is not None
        }
    if isinstance(shape, list):
        _expect(isinstance(value, list), value, path, "array")
        return [decode(item, shape[0], f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(shape, Map):
        _expect(isinstance(value, dict), value, path, "map")
        return {key: decode(item, shape.value, f"{path}[{key}]") for key, item in value.items()}
    if shape is QUANTITY:
        return _quantity(value, path)
    if shape is TIME:
        return _time(value, path)
    is_right = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    _expect(is_right and (shape is not int or -(2**63) <= value < 2**63), value, path, _GO[shape])
    return value


def _time(value: Any, path: str) -> str:
    """Return a time as the server writes it: UTC, in whole seconds."""
    _expect(isinstance(value, str), value, path, "time")
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise bad_request(f'parsing time "{value}" in field {path}: not RFC 3339')
    return parsed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quantity(value: Any, path: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _expect(isinstance(value, str) or is_number, value, path, "quantity")
    try:
        return str(Quantity.parse(value if isinstance(value, str) else repr(value)))
    except QuantityError as fault:
        raise bad_request(f"unable to parse quantity's suffix or number in field {path}: {fault.message}") from None


def without_empty(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """Return the value without empty lists and maps in objects, as `omitempty` leaves them out of JSON.

    `keep` names the fields whose values are left unchanged (opaque objects, which belong to drivers).
    """
    if isinstance(value, list):
        return [without_empty(item, keep) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v if k in keep else without_empty(v, keep) for k, v in value.items()}
    return {k: v for k, v in kept.items() if k in keep or not (isinstance(v, dict | list) and not v)}


def _expect(is_right: bool, value: Any, path: str, wanted: str) -> None:
    if not is_right:
        found = {str: "string", bool: "bool", dict: "object", list: "array", type(None): "null"}.get(
            type(value), "number"
        )
        raise bad_request(f"json: cannot unmarshal {found} into field {path or '.'} of type {wanted}")
