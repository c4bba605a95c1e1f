"""Records: frozen values as the JSON objects in which they outlive the process, written and read by one codec.

In: a dataclass, and for each field its key in the JSON object, where that differs from the field's name. Out: a
`RecordForm` that writes values as objects and reads them back. Keys that the form does not know are ignored when an
object is read, because a newer agent may have added them; `unknown` returns them for whoever has to keep them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from dra_driver.model.wire import Wire

T = TypeVar("T")

_NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Key:
    """How one field is recorded: its `name` in the object, and how its value is written and read.

    With `left_out`, the key is missing where the field has that value.
    """

    name: str
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    left_out: Any = _NO_DEFAULT


class RecordForm(Generic[T]):
    """The form in which values of one dataclass are recorded. `without` names fields that are not recorded."""

    def __init__(self, kind: type[T], *, without: tuple[str, ...] = (), **keys: Key) -> None:
        names = (field.name for field in fields(kind) if field.init and field.name not in without)  # type: ignore[arg-type]
        self._kind = kind
        self._keys = tuple((name, keys.get(name) or Key(name)) for name in names)
        self._known = frozenset(key.name for _, key in self._keys)

    def write(self, value: T) -> Wire:
        """Return the value as a JSON object."""
        record: Wire = {}
        for name, key in self._keys:
            found = getattr(value, name)
            if key.left_out is _NO_DEFAULT or found != key.left_out:
                record[key.name] = found if key.write is None else key.write(found)
        return record

    def read(self, record: Mapping[str, Any], **more: Any) -> T:
        """Return the value in an object; `more` are fields that are not in it.

        Raises: KeyError, TypeError, ValueError for an object that `write` can't have written.
        """
        for name, key in self._keys:
            if key.left_out is not _NO_DEFAULT and key.name not in record:
                more[name] = key.left_out
            else:
                found = record[key.name]
                more[name] = found if key.read is None else key.read(found)
        return self._kind(**more)

    def unknown(self, record: Mapping[str, Any]) -> Wire:
        """Return what the object has beyond the keys of this form."""
        return {key: value for key, value in record.items() if key not in self._known}


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # made once: every call writes records


def json_text(value: Any) -> str:
    """Return JSON in the one form in which claims and steps are stored: sorted keys, no spaces."""
    return _ENCODER.encode(value)
