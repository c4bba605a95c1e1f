"""Records: frozen values as JSON objects that outlive the process, written and read by one codec.

In: a dataclass, and for each field its key in the JSON object, if that differs from the field's name. Out: a
`RecordForm` that writes values as objects and reads them back. Keys that the form does not know are ignored when an
object is read, because a newer agent may have added them; `unknown` returns them to callers that have to keep them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
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
    """The form in which values of one dataclass are recorded, as objects with these `keys`.

    `without` names fields that are not recorded.
    """

    def __init__(self, kind: type[T], *, without: tuple[str, ...] = (), **keys: Key) -> None:
        names = [field.name for field in fields(kind) if field.init and field.name not in without]  # type: ignore[arg-type]
        form = [(name, keys.get(name) or Key(name)) for name in names]
        self._kind = kind
        self.keys = frozenset(key.name for _, key in form)
        # The keys are sorted into kinds once, because every call of the kubelet reads and writes records.
        is_plain = {name: key.write is None and key.left_out is _NO_DEFAULT for name, key in form}
        self._written = tuple((key.name, key.write, key.left_out) for name, key in form if not is_plain[name])
        self._written_values = _getter([name for name, _ in form if not is_plain[name]])
        self._plain_keys = tuple(key.name for name, key in form if is_plain[name])
        self._plain_values = _getter([name for name, _ in form if is_plain[name]])
        self._read = tuple(
            (name, key.name, key.read, key.missing if key.left_out is _NO_DEFAULT else key.left_out)
            for name, key in form
        )

    def write(self, value: T) -> Wire:
        """Return the value as a JSON object."""
        record: Wire = dict(zip(self._plain_keys, self._plain_values(value), strict=True))
        for (key, write, left_out), found in zip(self._written, self._written_values(value), strict=True):
            if left_out is _NO_DEFAULT or found != left_out:
                record[key] = found if write is None else write(found)
        return record

    def read(self, record: Mapping[str, Any], **more: Any) -> T:
        """Return the value of an object; `more` are the fields that are not recorded.

        Raises: KeyError, TypeError, ValueError for an object that `write` can't have written.
        """
        for name, key, read, default in self._read:
            if key in record:
                found = record[key]
                more[name] = found if read is None else read(found)
            elif default is _NO_DEFAULT:
                raise KeyError(key)
            else:
                more[name] = default
        return self._kind(**more)

    def unknown(self, record: Mapping[str, Any]) -> Wire:
        """Return the keys of the object that this form does not have, with their values."""
        return {key: value for key, value in record.items() if key not in self.keys}


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a value, in order."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    only = attrgetter(names[0])
    return lambda value: (only(value),)


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # made once: every call writes records


def json_text(value: Any) -> str:
    """Return JSON in the one form in which claims and steps are stored: sorted keys, no spaces."""
    return _ENCODER.encode(value)
