"""The names of run-time types, as messages print them.

In: a value or a type. Out: its name in CEL, or in Go, the server's own language.

Source: cel-go's common/types and Kubernetes' CEL libraries.
"""

from __future__ import annotations

from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.selectors.values.containers import CelMap, Concat, is_map
from dra_driver.selectors.values.doubles import format_double
from dra_driver.selectors.values.types import Type
from dra_driver.selectors.values.values import (
    CelError,
    CelQuantity,
    Cidr,
    Duration,
    Ip,
    MessageValue,
    NamedFormat,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Url,
)

_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    Concat: "list",
    dict: "map",
    CelMap: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Optional: "optional_type",
    TypeValue: "type",
    CelQuantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
}


def type_name(value: Any) -> str:
    """Return the name of a value's run-time type as messages print it."""
    kind = type(value)
    if kind is MessageValue:
        return str(value.name)
    name = _NAMES.get(kind)
    return name if name is not None else "map" if isinstance(value, dict) else kind.__name__


_RUNTIME_NAMES = {
    "null": "null_type",
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "any": "google.protobuf.Any",
}


def runtime_type_name(t: Type) -> str:
    """Return the name of a type when it is used as a value."""
    return _RUNTIME_NAMES.get(t.kind, t.name)


_GO_TYPES: dict[type, str] = {
    CelError: "*types.Err",
    list: "*types.baseList",
    Concat: "*types.concatList",
    bool: "types.Bool",
    int: "types.Int",
    Uint: "types.Uint",
    float: "types.Double",
    str: "types.String",
    bytes: "types.Bytes",
    type(None): "types.Null",
    Duration: "types.Duration",
    Timestamp: "types.Timestamp",
    Optional: "*types.Optional",
    TypeValue: "*types.Type",
    CelQuantity: "cel.Quantity",
    Semver: "cel.Semver",
    Url: "cel.URL",
    Ip: "cel.IP",
    Cidr: "cel.CIDR",
    NamedFormat: "cel.Format",
}


def go_type(value: Any) -> str:
    """Return the name of the value's type in the server's own language, Go; some messages show it."""
    if type(value) is CelQuantity and value.computed:
        return "*cel.Quantity"
    return "*types.baseMap" if is_map(value) else _GO_TYPES.get(type(value), "types.Unknown")


def shown(value: Any) -> str:
    """Format a key or an index as messages do."""
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) in {int, Uint, str}:
        return str(value)
    if type(value) is float:
        return format_double(value)
    if type(value) is TypeValue:
        return value.name
    return type_name(value)
