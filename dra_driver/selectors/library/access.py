"""Field access: selection, indexing, presence, iteration.

In: a value and a field name or key. Out: the value found there, or a `CelError`. The domains of a device return an
empty map for an unknown name; optionals pass the access on to their content.

Source: cel-go's attribute resolution, and the default map of Kubernetes' device environment.
"""

from __future__ import annotations

import math
from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.selectors.values.containers import (
    CelMap,
    Concat,
    element_at,
    find,
    is_map,
    list_size,
    map_items,
    map_keys,
    unfold,
)
from dra_driver.selectors.values.doubles import format_double
from dra_driver.selectors.values.type_names import go_type, shown, type_name
from dra_driver.selectors.values.values import (
    NONE,
    CelError,
    CelQuantity,
    Cidr,
    Ip,
    MessageValue,
    Optional,
    TypeValue,
    Uint,
    Url,
)

_FOREIGN = frozenset({CelQuantity, Semver, Url, Ip, Cidr})
_EMPTY: dict[str, Any] = {}


class Domains(dict[str, "dict[str, Any]"]):
    """The attributes or the capacity of a device: looking up an unknown domain returns an empty map."""

    __slots__ = ()

    def __missing__(self, _: str) -> dict[str, Any]:
        return _EMPTY


def bound(value: Any) -> Any:
    """Return the value to which a variable is bound: empty `Domains` become a plain empty map."""
    return {} if type(value) is Domains and not value else value


KEY_TYPES = frozenset({str, int, Uint, float, bool})


def check_key(key: Any) -> None:
    """Raise if a value can't be the key of any container.

    Raises:
        CelError: The value is not of a key type.
    """
    if type(key) not in KEY_TYPES:
        raise CelError(f"invalid qualifier type: {go_type(key)}")


def index(holder: Any, key: Any) -> Any:
    """Evaluate `holder[key]` and `holder.key`.

    Raises:
        CelError: The key does not exist, or has a wrong type.
    """
    kind = type(holder)
    if kind is dict:
        if type(key) is str and key in holder:
            return holder[key]
        raise CelError(f"no such key: {shown(key)}")
    check_key(key)
    if kind is Domains:
        return holder.get(key, _EMPTY) if type(key) is str else _EMPTY
    if kind is Optional:
        return index_optional(holder, key)
    found, value = _look_up(holder, key)
    if found:
        return value
    if kind is list or kind is Concat:
        raise CelError(f"index out of bounds: {shown(key)}")
    raise CelError(f"no such key: {shown(key)}")


def index_optional(holder: Any, key: Any) -> Optional:
    """Evaluate `holder[?key]` and `holder.?key`."""
    if type(holder) is Optional:
        if not holder.present:
            return NONE
        holder = holder.value if holder.is_raw else native(holder.value)
    check_key(key)
    found, value = _look_up(holder, key)
    if not found:
        return NONE
    return Optional(value, is_raw=type(holder) is dict and type(value) is Semver)


def native(value: Any) -> Any:
    """Return the content of an optional whose field is to be read; raise if the server can't convert that content."""
    if type(value) in _FOREIGN:
        raise CelError(f"unsupported conversion to ref.Val: {_in_go(value)}")
    if type(value) is CelError:
        raise value
    return value


def value_of(optional: Optional) -> Any:
    """Evaluate value()."""
    if not optional.present:
        raise CelError("optional.none() dereference")
    if type(optional.value) is CelError:
        raise optional.value
    return optional.value


def copied(optional: Optional) -> Optional:
    """Return an optional as a ternary passes it on up to 1.36: converted to Go and back.

    A value of one of Kubernetes' own types is lost (the error appears when the content is used), a type becomes its
    name, and nested optionals collapse into one.

    Source: cel-go 0.26, applyQualifiers.
    """
    if not optional.present:
        return optional
    value = optional.value
    while type(value) is Optional:
        value = value.value
    if type(value) is TypeValue:
        value = value.name
    try:
        return Optional(native(value))
    except CelError as error:
        return Optional(error)


def _in_go(value: Any) -> str:
    """Format a value of one of Kubernetes' own types with its Go type."""
    if type(value) is CelQuantity:
        return f"(*resource.Quantity){value.number}"
    if type(value) is Semver:
        return f"(semver.Version){value}"
    if type(value) is Ip:
        return f"(netip.Addr){value.address}"
    if type(value) is Cidr:
        return f"(netip.Prefix){value.address}/{value.prefix}"
    return f"(*url.URL){value.text}"


def has_field(holder: Any, field: str) -> bool:
    """Evaluate has(holder.field)."""
    if type(holder) is Optional:
        return holder.present and has_field(holder.value if holder.is_raw else native(holder.value), field)
    return _look_up(holder, field)[0]


def _look_up(holder: Any, key: Any) -> tuple[bool, Any]:
    kind = type(holder)
    if kind is Domains:
        return True, holder.get(key, _EMPTY) if type(key) is str else _EMPTY
    if kind is dict or kind is CelMap:
        return find(holder, key)
    if kind is list or kind is Concat:
        position = _position(key)
        if 0 <= position < list_size(holder):
            return True, element_at(holder, position)
        return False, None
    if kind is MessageValue:
        for name, value in holder.fields:
            if name == key:
                return True, value
    return False, None


def _position(key: Any) -> int:
    kind = type(key)
    if kind is int or kind is Uint:
        return int(key)
    if kind is float:
        if math.isfinite(key) and key == int(key):
            return int(key)
        raise CelError(f"unsupported index value {format_double(key)} in list")
    raise CelError(f"unsupported index type '{type_name(key)}' in list")


def iterate(value: Any) -> list[Any]:
    """List the elements or keys that a one-variable loop visits.

    Raises:
        CelError: The value can't be looped over.
    """
    if type(value) is list or type(value) is Concat:
        return unfold(value)
    if is_map(value):
        return map_keys(value)
    raise CelError(f"got '{go_type(value)}', expected iterable type")


def iterate_pairs(value: Any) -> list[tuple[Any, Any]]:
    """List the pairs that a two-variable loop visits: index and element, or key and value.

    Raises:
        CelError: The value can't be looped over.
    """
    if type(value) is list or type(value) is Concat:
        return list(enumerate(unfold(value)))
    if is_map(value):
        return map_items(value)
    raise CelError(f"unsupported comprehension range type: {go_type(value)}")
