"""Fields: strict decoding of the profiles of simulated hardware, with all faults at once and the path of each.

In: nested dicts and lists of str, int, bool and None. Out: typed values, and a list of faults. After a fault, reading
continues with a harmless substitute, so that one run shows every fault; the caller must not use the values if there are
faults. A field that no caller reads is a fault.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_MAX_TEXT = 1024


class Fields:
    """One mapping of a document, at a path such as `gpus[3].mig[0]`."""

    def __init__(
        self, value: object, path: str, faults: list[str], defaults: Mapping[str, object] | None = None
    ) -> None:
        self.path, self.faults = path, faults
        self._asked: set[str] = set()
        self._value: dict[str, object] = dict(defaults or {})
        if isinstance(value, dict):
            self._value.update(value)
        else:
            self._fault(path, f"expected named fields, got {_described(value)}")

    def close(self) -> None:
        """Record a fault for every field that no caller has read."""
        known = ", ".join(sorted(self._asked))
        for key in self._value:
            if key not in self._asked:
                self._fault(self._at(key), f"unknown field (known here: {known})")

    def has(self, key: str) -> bool:
        """Return whether the field is given and not null."""
        self._asked.add(key)
        return self._value.get(key) is not None

    def fault(self, key: str, message: str) -> None:
        """Record a fault that the caller found in a field."""
        self._fault(self._at(key), message)

    def any(self, key: str) -> object:
        """Return a field's value unchecked, for a caller that checks it; None if the field is not given."""
        return self._get(key)

    def text(self, key: str, *, pattern: str = "", what: str = "a string") -> str:
        """Return a string that must be given. `what` describes it in the message of a fault."""
        return self.optional_text(key, pattern=pattern, what=what) or self._required(key, what, "")

    def optional_text(self, key: str, *, pattern: str = "", what: str = "a string") -> str | None:
        """Return a string; None if it is not given."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value or len(value) > _MAX_TEXT:
            self._wrong(key, what, value)
            return None
        if pattern and not re.fullmatch(pattern, value):
            self._wrong(key, what, value)
            return None
        return value

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """Return a whole number that must be given."""
        value = self.optional_integer(key, minimum, maximum)
        return self._required(key, f"a whole number from {minimum} to {maximum}", minimum) if value is None else value

    def optional_integer(self, key: str, minimum: int, maximum: int) -> int | None:
        """Return a whole number; None if it is not given."""
        value = self._get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self._wrong(key, f"a whole number from {minimum} to {maximum}", value)
            return None
        return value

    def optional_flag(self, key: str) -> bool | None:
        """Return true or false; None if it is not given."""
        value = self._get(key)
        if value is None or isinstance(value, bool):
            return value
        self._wrong(key, "true or false", value)
        return None

    def integers(self, key: str, maximum: int) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to `maximum`; empty if it is not given."""
        values = self._list(key)
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
                self._fault(
                    f"{self._at(key)}[{index}]", f"expected a number from 0 to {maximum}, got {_described(value)}"
                )
        return tuple(value for value in values if isinstance(value, int))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty if it is not given."""
        values = self._list(key)
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value:
                self._fault(f"{self._at(key)}[{index}]", f"expected a string, got {_described(value)}")
        return tuple(value for value in values if isinstance(value, str))

    def section(self, key: str) -> Fields:
        """Return the fields of a nested mapping; no fields if it is not given."""
        value = self._get(key)
        return Fields({} if value is None else value, self._at(key), self.faults)

    def rows(self, key: str, *, maximum: int, defaults: Mapping[str, object] | None = None) -> tuple[Fields, ...]:
        """Return a list of at most `maximum` mappings, each completed from `defaults`; empty if it is not given."""
        values = self._list(key)
        if len(values) > maximum:
            self._fault(self._at(key), f"{len(values)} entries, at most {maximum} are allowed")
        return tuple(
            Fields(value, f"{self._at(key)}[{index}]", self.faults, defaults)
            for index, value in enumerate(values[:maximum])
        )

    def entries(self) -> Iterator[tuple[str, object]]:
        """Yield all fields unchecked, for mappings whose keys the author of the file chooses."""
        self._asked.update(self._value)
        yield from self._value.items()

    def _get(self, key: str) -> object:
        self._asked.add(key)
        return self._value.get(key)

    def _list(self, key: str) -> list[object]:
        value = self._get(key)
        if value is None or isinstance(value, list):
            return value or []
        self._wrong(key, "a list", value)
        return []

    def _required(self, key: str, what: str, substitute: _T) -> _T:
        if self._value.get(key) is None:
            self._fault(self._at(key), f"missing, expected {what}")
        return substitute

    def _wrong(self, key: str, what: str, value: object) -> None:
        self._fault(self._at(key), f"expected {what}, got {_described(value)}")

    def _at(self, key: object) -> str:
        return f"{self.path}.{key}" if self.path else str(key)

    def _fault(self, path: str, message: str) -> None:
        self.faults.append(f"{path or 'document'}: {message}")


def _described(value: object) -> str:
    if isinstance(value, dict):
        return "named fields"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value if len(str(value)) <= 64 else str(value)[:61] + "…")


# Shared values: what the devices of many ResourceSlices have in common, kept once.

_MAX_KNOWN = 65_536
_FLAT = frozenset({str, int, bool})
_WHOLE = ("capacity", "consumesCounters", "taints")


class SharedValues:
    """Values that were seen before."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def share(self, wire: Any) -> None:
        """Replace the parts that a slice has in common with earlier ones. Any other value stays as it is."""
        spec = wire.get("spec") if isinstance(wire, dict) else None
        devices = spec.get("devices") if isinstance(spec, dict) else None
        for device in devices if isinstance(devices, list) else ():
            if not isinstance(device, dict):
                continue
            attributes = device.get("attributes")
            if isinstance(attributes, dict):
                device["attributes"] = self._attributes(attributes)
            for name in _WHOLE:
                if name in device:
                    device[name] = self._kept(repr(device[name]), device[name])

    def _attributes(self, attributes: dict[str, Any]) -> dict[str, Any]:
        known, made = self._known, {}
        for key, value in attributes.items():
            name = sys.intern(key) if type(key) is str else key
            if type(value) is dict and len(value) == 1:
                ((kind, inner),) = value.items()
                if type(inner) in _FLAT:
                    known_by = kind, inner, type(inner)
                    made[name] = known.get(known_by) or self._kept(known_by, value)
                    continue
            made[name] = value
        return made

    def _kept(self, key: Any, value: Any) -> Any:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = value
        return known
