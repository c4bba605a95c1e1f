"""Records: frozen values as JSON objects that outlive the process, written and read by one codec.

In: a dataclass or a named tuple, and for each field its key in the JSON object, if that differs from the field's name.
Out: a `RecordForm` that writes values as objects and reads them back. Keys that the form does not know are ignored when
an object is read, because a newer agent may have added them; `unknown` returns them to callers that have to keep them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from dra_driver.model.wire import Wire

T = TypeVar("T")

_NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Key:
    """How one field is recorded: its `name` in the object, and how its value is written and read.

    With `left_out`, the key is omitted where the field has that value. With `missing`, the key is always written, and
    an object without it has that value.
    """

    name: str
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    left_out: Any = _NO_DEFAULT
    missing: Any = _NO_DEFAULT


class RecordForm(Generic[T]):
    """The form in which values of one type are recorded, as objects with these `keys`.

    `without` names fields that are not recorded.
    """

    def __init__(self, kind: type[T], *, without: tuple[str, ...] = (), **keys: Key) -> None:
        names = [name for name in _field_names(kind) if name not in without]
        form = [(name, keys.get(name) or Key(name)) for name in names]
        self._kind = kind
        self.keys = frozenset(key.name for _, key in form)
        # The keys are sorted into kinds once, because every call of the kubelet reads and writes records.
        kept = [(name, key) for name, key in form if key.left_out is _NO_DEFAULT]
        optional = [(name, key) for name, key in form if key.left_out is not _NO_DEFAULT]
        self._plain_keys = tuple(key.name for _, key in kept if key.write is None)
        self._plain_values = _getter([name for name, key in kept if key.write is None])
        self._converted = tuple((key.name, attrgetter(name), key.write) for name, key in kept if key.write is not None)
        self._optional = tuple((key.name, key.left_out, key.write) for _, key in optional)
        self._optional_values = _getter([name for name, _ in optional])
        self._left_out = tuple(key.left_out for _, key in optional)
        defaults = {name: key.missing if key.left_out is _NO_DEFAULT else key.left_out for name, key in form}
        self._defaults = {name: default for name, default in defaults.items() if default is not _NO_DEFAULT}
        copied = [(name, key) for name, key in form if key.read is None and name not in self._defaults]
        self._copied = [name for name, _ in copied]
        self._found = _getter([key.name for _, key in copied], itemgetter)
        self._read = tuple((name, key.name, key.read) for name, key in form if name not in self._copied)

    def write(self, value: T) -> Wire:
        """Return the value as a JSON object."""
        record: Wire = dict(zip(self._plain_keys, self._plain_values(value), strict=True))
        for key, get, write in self._converted:
            record[key] = write(get(value))
        found = self._optional_values(value)
        if found != self._left_out:  # most values have none of the optional fields
            for (key, left_out, convert), one in zip(self._optional, found, strict=True):
                if one != left_out:
                    record[key] = one if convert is None else convert(one)
        return record

    def read(self, record: Mapping[str, Any], **more: Any) -> T:
        """Return the value of an object; `more` are the fields that are not recorded.

        Raises: KeyError, TypeError, ValueError for an object that `write` can't have written.
        """
        more.update(self._defaults)
        more.update(zip(self._copied, self._found(record), strict=True))
        for name, key, read in self._read:
            if key in record:
                found = record[key]
                more[name] = found if read is None else read(found)
            elif name not in self._defaults:
                raise KeyError(key)
        return self._kind(**more)

    def unknown(self, record: Mapping[str, Any]) -> Wire:
        """Return the keys of the object that this form does not have, with their values."""
        return {key: value for key, value in record.items() if key not in self.keys}


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or a named tuple, as far as they are set when a value is made."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in fields(kind) if field.init)  # type: ignore[arg-type]


def _getter(
    names: list[str], get: Callable[..., Callable[[Any], Any]] = attrgetter
) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a value (with `itemgetter`, items), in order."""
    if len(names) > 1:
        return get(*names)
    if not names:
        return lambda _: ()
    only = get(names[0])
    return lambda value: (only(value),)


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # made once: every call writes records


def json_text(value: Any) -> str:
    """Return JSON in the one form in which claims and steps are stored: sorted keys, no spaces."""
    return _ENCODER.encode(value)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises: ValueError, TypeError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"{found!s:.40} is no JSON object")
    return found
