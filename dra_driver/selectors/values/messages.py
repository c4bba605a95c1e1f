"""The protobuf messages that a selector can name.

In: the name of a message. Out: its type and its fields. Selectors have no use for messages, but the server's compiler
knows them, so `google.protobuf.Int64Value{value: 1}` must get the same verdict here.

Source: the well-known types that cel-go registers.
"""

from __future__ import annotations

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
    wrapper_of,
)

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
