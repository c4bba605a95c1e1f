"""What is wrong with an opaque config, in words that a person can act on.

In: one of pydantic's errors, and the model that was validated. Out: the fault, with the path of its field as users
write it.
Importing this module costs megabytes of memory, as `schema` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dra_driver.claims.config.device_config import ConfigFault, type_name

COMPLETE = "dra_driver"  # the type of this driver's own errors, whose message is complete
_BY_DEVICE = "defaultPerDevicePinnedMemoryLimit"


def as_fault(model: type[BaseModel], error: ErrorDetails, path: str) -> ConfigFault:
    """Return one of pydantic's errors as a fault at its field, whose path begins with `path`."""
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    where = path
    for previous, part in zip(("", *parts), parts, strict=False):
        name = part if part.isprintable() else repr(part)  # a tenant's key may hold orders to a terminal
        where += f"[{name}]" if previous == _BY_DEVICE else f".{name}"
    return ConfigFault(where, _message(model, error, parts))


def _message(model: type[BaseModel], error: ErrorDetails, parts: list[str]) -> str:
    kind, value = error["type"], error["input"]
    if kind == COMPLETE:
        return str(error["ctx"]["message"])
    if kind == "extra_forbidden":
        known = _model_at(model, parts[:-1]).model_fields
        return f"unknown field; known are {', '.join(known)}"
    if kind in {"literal_error", "missing"}:
        allowed = get_args(_model_at(model, parts[:-1]).model_fields[parts[-1]].annotation)
        found = None if kind == "missing" else value
        return must_be(tuple(_words(allowed)), found)
    if kind in {"greater_than_equal", "less_than_equal"}:
        return f"must be between 0 and 100, is {value}"
    expected = {"int_type": "an integer", "bool_type": "true or false"}.get(kind, "an object")
    return f"must be {expected}, is {type_name(value)}"


def must_be(allowed: tuple[str, ...], found: Any) -> str:
    """Return a message with the allowed words and the word that was found."""
    expected = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    return f"{expected}, is {found!r}" if isinstance(found, str) else f"{expected}, is {_absent(found)}"


def _absent(found: Any) -> str:
    return "missing" if found is None else type_name(found)


def _words(allowed: tuple[Any, ...]) -> Iterator[str]:
    """Yield the words of a Literal, even of one that may be absent."""
    for word in allowed:
        if isinstance(word, str):
            yield word
        else:
            yield from _words(get_args(word))


def _model_at(model: type[BaseModel], parts: list[str]) -> type[BaseModel]:
    """Find the model of the nested object at a path."""
    for part in parts:
        options = get_args(model.model_fields[part].annotation)
        model = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return model
