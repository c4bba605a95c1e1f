"""What is wrong with an opaque config, in the API's words.

In: one of pydantic's errors, and the fields of the object that it was found in. Out: the fault, with the path of its
field as users write it.
Importing this module costs megabytes of memory, as `schema` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dra_driver.claims.config.device_config import ConfigFault, type_name
from dra_driver.documents.section import complete

_BY_DEVICE = "defaultPerDevicePinnedMemoryLimit"


def as_fault(error: ErrorDetails, path: str) -> ConfigFault:
    """Return a validation error as a fault at its field, whose path begins with `path`."""
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    where = path
    for previous, part in zip(("", *parts), parts, strict=False):
        name = part if part.isprintable() else repr(part)  # a tenant's key may hold orders to a terminal
        where += f"[{name}]" if previous == _BY_DEVICE else f".{name}"
    return ConfigFault(where, complete(error))


def message_of(error: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """Return one of pydantic's errors in words; `fields` are those of the object that it was found in."""
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown field; known are {', '.join(fields)}"
    if kind in {"literal_error", "missing"}:
        allowed = get_args(fields[str(error["loc"][0])].annotation)
        return must_be(tuple(_words(allowed)), None if kind == "missing" else value)
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
