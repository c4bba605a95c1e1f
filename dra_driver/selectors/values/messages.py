"""Construction of containers and messages, and insertion into maps.

In: evaluated parts. Out: a list, a map, a message, or a `CelError`.

Source: cel-go's literal evaluation (optional entries without a value are dropped) and its two-variable extension.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from dra_driver.selectors.values.equality import (
    INT_OVERFLOW,
    NO_SUCH_OVERLOAD,
    UINT_OVERFLOW,
    to_duration,
    to_timestamp,
)
from dra_driver.selectors.values.types import (
    ANY,
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    shown,
    type_name,
    wrapper_of,
)
from dra_driver.selectors.values.values import (
    CelError,
    CelMap,
    MessageValue,
    Optional,
    Uint,
    find,
    is_map,
    map_items,
    raw_key,
    refuse_unhashable,
)

# The protobuf messages that a selector can name.

DEVICE = "kubernetes.DRADevice"

_WRAPPED = {
    "Bool": BOOL,
    "Bytes": BYTES,
    "Double": DOUBLE,
    "Float": DOUBLE,
    "Int32": INT,
    "Int64": INT,
    "String": STRING,
    "UInt32": UINT,
    "UInt64": UINT,
}
_SECONDS_AND_NANOS = {"seconds": INT, "nanos": INT}

MESSAGE_TYPES: dict[str, Type] = {
    DEVICE: Type("struct", DEVICE),
    "google.protobuf.Any": ANY,
    "google.protobuf.Duration": DURATION,
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Struct": map_of(STRING, DYN),
    "google.protobuf.Value": DYN,
    "google.protobuf.ListValue": list_of(DYN),
    "google.protobuf.Empty": Type("struct", "google.protobuf.Empty"),
    **{f"google.protobuf.{name}Value": wrapper_of(inner) for name, inner in _WRAPPED.items()},
}

# Types that the checker knows and the planner does not: a reference to one of these names fails construction.
UNDEFINED_AS_VALUES = frozenset(
    {"duration", "timestamp", *MESSAGE_TYPES} - {f"google.protobuf.{n}" for n in ("Duration", "Timestamp", "Empty")}
)
ENUM_VALUES = {"google.protobuf.NullValue.NULL_VALUE": 0}
_ALIASES = {
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "null_type": "google.protobuf.NullValue",
}

MESSAGE_FIELDS: dict[str, dict[str, Type]] = {
    "google.protobuf.Any": {"type_url": STRING, "value": BYTES},
    "google.protobuf.Duration": _SECONDS_AND_NANOS,
    "google.protobuf.Timestamp": _SECONDS_AND_NANOS,
    "google.protobuf.Struct": {"fields": map_of(STRING, DYN)},
    "google.protobuf.Value": {
        "null_value": INT,  # an enum
        "number_value": DOUBLE,
        "string_value": STRING,
        "bool_value": BOOL,
        "struct_value": map_of(STRING, DYN),
        "list_value": list_of(DYN),
    },
    "google.protobuf.ListValue": {"values": list_of(DYN)},
    "google.protobuf.Empty": {},
    "google.protobuf.NullValue": {},
    **{f"google.protobuf.{name}Value": {"value": inner} for name, inner in _WRAPPED.items()},
}


def message_name(name: str) -> str:
    """Return the full name of a message that also has a short name."""
    return _ALIASES.get(name, name)


# Texts quoted as the server's messages quote them.

ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quote(text: str) -> str:
    """Quote a text and escape the characters that can't be printed."""
    return f'"{"".join([ESCAPES.get(char) or _character(char) for char in text])}"'


def _character(char: str) -> str:
    code = ord(char)
    if char.isprintable() and not 0xD800 <= code <= 0xDFFF:
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_DEFAULTS: dict[str, Any] = {"bool": False, "bytes": b"", "double": 0.0, "int": 0, "string": "", "uint": Uint(0)}


def make_list(values: list[Any], optional: frozenset[int]) -> list[Any]:
    """Make a list; entries marked as optional are unwrapped or, if they have no value, dropped."""
    if not optional:
        return values
    made = []
    for position, value in enumerate(values):
        if position not in optional:
            made.append(value)
        elif type(value) is not Optional:
            raise CelError(f"cannot initialize optional list element from non-optional value {shown(value)}")
        elif value.present:
            made.append(value.value)
    return made


def make_map(entries: list[tuple[Any, Any, bool]]) -> CelMap:
    """Make a map from (key, value, optional) entries."""
    items: dict[Any, Any] = {}
    for key, value, optional in entries:
        refuse_unhashable(key)
        item = value
        if optional:
            if type(value) is not Optional:
                raise CelError(
                    f"cannot initialize optional entry '{shown(key)}' from non-optional value {shown(value)}"
                )
            if not value.present:
                items.pop(raw_key(key), None)
                continue
            item = value.value
        items[raw_key(key)] = item
    return CelMap(items)


def insert(*args: Any) -> CelMap:
    """Evaluate the hidden insert of the macros that build maps: (map, key, value) or (map, entries).

    Raises:
        CelError: The map has the key already.
    """
    holder = args[0]
    entries = [(args[1], args[2])] if len(args) == 3 else _entries(args[1])
    items: dict[Any, Any] = holder.items
    for key, value in entries:
        refuse_unhashable(key)
        if find(holder, key)[0]:
            raise CelError(f"insert failed: key {shown(key)} already exists")
        items[raw_key(key)] = value
    return CelMap(items)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if not is_map(value):
        raise CelError(NO_SUCH_OVERLOAD)
    return map_items(value)


def make_message(name: str, fields: dict[str, Any]) -> Any:
    """Make a protobuf message; well-known messages become the CEL values that they stand for."""
    if name != message_name(name) or name == DEVICE:
        raise CelError(f"unknown type '{name}'")
    short = name.removeprefix("google.protobuf.")
    for field, value in fields.items():
        fields[field] = _field(name, field, value)
    if short in {"Duration", "Timestamp"}:
        ns = fields.get("seconds", 0) * 10**9 + fields.get("nanos", 0)
        return to_duration(ns) if short == "Duration" else to_timestamp(ns)
    if short == "Struct":
        return fields.get("fields", {})
    if short == "ListValue":
        return fields.get("values", [])
    if short == "Value":
        return _json_value(fields)
    if "value" in MESSAGE_FIELDS.get(name, {}) and short != "Any":
        default = _DEFAULTS[MESSAGE_FIELDS[name]["value"].kind]
        return fields.get("value", default)
    if short == "Any":
        shown = " ".join([f"{field}:{quote(value)}" for field, value in sorted(fields.items()) if type(value) is str])
        raise CelError(f"unsupported conversion to ref.Val: (*dynamicpb.Message){shown}")
    return MessageValue(name, tuple(sorted(fields.items())))


_NATIVE: dict[str, tuple[type, str]] = {
    "bool": (bool, "bool"),
    "bytes": (bytes, "[]uint8"),
    "double": (float, "float64"),
    "int": (int, "int64"),
    "string": (str, "string"),
    "uint": (Uint, "uint64"),
}


def _field(message: str, field: str, value: Any) -> Any:
    """Convert a value to the type of a message's field."""
    declared = MESSAGE_FIELDS[message][field]
    native = _NATIVE.get(declared.kind)
    if native is None:
        return value
    kind, name = native
    fault = f"field type conversion error for {message}.{field} value type: "
    number: Any = value
    if type(value) is not kind:
        raise CelError(f"{fault}unsupported native conversion from {type_name(value)} to '{name}'")
    if "Int32" in message.replace("UInt", "Int") and not -(2**31) <= number < (2**32 if kind is Uint else 2**31):
        raise CelError(f"{fault}{UINT_OVERFLOW if kind is Uint else INT_OVERFLOW}")
    if "Float" in message:
        try:
            return float(struct.unpack("f", struct.pack("f", number))[0])
        except OverflowError:
            return math.copysign(math.inf, number)
    return value


def _json_value(fields: dict[str, Any]) -> Any:
    for field, value in fields.items():
        return None if field == "null_value" else value
    return None
