"""Field access: selection, indexing, presence, iteration.

In: a value and a field name or key. Out: the value found there, or a `CelError`. The domains of a device return an
empty map for an unknown name; optionals pass the access on to their content.

Source: cel-go's attribute resolution, and the default map of Kubernetes' device environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dra_driver.base.versions import Semver
from dra_driver.selectors.functions.formats import FORMATS
from dra_driver.selectors.functions.lists import LIST_AND_ANY, LISTS, QUANTITIES, includes, includes_all, is_list
from dra_driver.selectors.functions.named_formats import NAMED_FORMATS
from dra_driver.selectors.functions.network import NETWORK, URLS
from dra_driver.selectors.functions.strings import REGEX, STRINGS
from dra_driver.selectors.functions.time import CONVERSIONS, accessors, type_of_value
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD, TIME_MIN
from dra_driver.selectors.values.types import go_type, shown, type_name
from dra_driver.selectors.values.values import (
    NONE,
    CelError,
    CelMap,
    CelQuantity,
    Cidr,
    Concat,
    Duration,
    Ip,
    MessageValue,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Url,
    element_at,
    find,
    format_double,
    is_map,
    list_size,
    map_items,
    map_keys,
    map_size,
    unfold,
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
    found, value = _look_up(holder, key)
    if found:
        return value
    if kind is list or kind is Concat:
        raise CelError(f"index out of bounds: {shown(key)}")
    raise CelError(f"no such key: {shown(key)}")


def index_optional(holder: Any, key: Any, *, unwraps: bool) -> Optional:
    """Evaluate `holder[?key]` and `holder.?key`, or `holder[key]` and `holder.key` of an optional.

    `unwraps` says that the holder is the start of a chain of accesses, in a version that converts it to Go.
    """
    if type(holder) is Optional:
        if not holder.present:
            return NONE
        holder = _content(holder, unwraps=unwraps)
    check_key(key)
    found, value = _look_up(holder, key)
    return Optional(value) if found else NONE


def _content(optional: Optional, *, unwraps: bool) -> Any:
    """Return the content of an optional whose field is to be read; raise if the server can't convert that content."""
    value = optional.value
    while unwraps and type(value) is Optional:
        value = value.value
    return native(value) if unwraps or type(value) is CelError else value


def native(value: Any) -> Any:
    """Return a value that is converted to Go and back; raise if the server can't."""
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


def has_field(holder: Any, field: str, *, unwraps: bool) -> bool:
    """Evaluate has(holder.field)."""
    if type(holder) is Optional:
        return holder.present and _look_up(_content(holder, unwraps=unwraps), field)[0]
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


# Optional values: how to make them and how to read them.

_ZEROS = frozenset({bool, int, Uint, float, str, bytes, list})


def is_zero(value: Any) -> bool:
    """Return whether a value counts as zero: empty, 0, false, null, or the zero time. A device's domains never do."""
    kind = type(value)
    if value is None:
        return True
    if kind in _ZEROS:
        return not value
    if kind is Duration:
        return bool(value.ns == 0)
    if kind is Timestamp:
        return bool(value.ns == TIME_MIN)
    if kind is Concat:
        return bool(value.size == 0)
    return is_map(value) and type(value) is not Domains and map_size(value) == 0


def of(value: Any) -> Optional:
    """Evaluate optional.of()."""
    return Optional(value)


def of_non_zero(value: Any) -> Optional:
    """Evaluate optional.ofNonZeroValue()."""
    return NONE if is_zero(value) else Optional(value)


OPTIONALS: dict[str, dict[tuple[type, ...], Any]] = {
    "hasValue": {(Optional,): lambda optional: optional.present},
    "value": {(Optional,): value_of},
    "optional.none": {(): lambda: NONE},
}
ANY_TO_OPTIONAL = {"optional.of": of, "optional.ofNonZeroValue": of_non_zero}


# What functions do at run time: one table from names to implementations by operand types.

Function = Callable[..., Any]
_Table = dict[tuple[type, ...], Callable[..., Any]]

# Functions whose implementations check their operands themselves and fail with the short text.
_SHORT_REFUSAL = frozenset({"contains", "startsWith", "endsWith"})
_NAMED_REFUSAL = frozenset({"size", "matches", "sort", "@sortByAssociatedKeys"})
UNGUARDED = _SHORT_REFUSAL | _NAMED_REFUSAL | {"flatten"}
_RECEIVERS = frozenset({str, Duration, Timestamp})  # types that refuse every call themselves, with the short text


def refusal(name: str, args: tuple[Any, ...]) -> CelError:
    """Return the error of a function whose operands fit no overload."""
    name = name.partition(" up to ")[0].partition(" since ")[0]
    if name in _SHORT_REFUSAL:
        return CelError(NO_SUCH_OVERLOAD)
    if name in _NAMED_REFUSAL:
        return CelError(NO_SUCH_OVERLOAD if type(args[0]) in _RECEIVERS else f"{NO_SUCH_OVERLOAD}: {name}")
    names = [type_name(arg) for arg in args]
    if name == "flatten":
        return CelError(f"{NO_SUCH_OVERLOAD}: {names[0]}.flatten({', '.join(names[1:])})")
    return CelError(f"{NO_SUCH_OVERLOAD}: {name.removeprefix('.')}({', '.join(names)})")


def dispatch_name(function: str, *, member: bool) -> str:
    """Return the table entry for a call: some functions mean one thing as a method and another as a global function."""
    return ".ip" if member and function == "ip" else function


def implementation(function: str, *, member: bool) -> Function:
    """Find the implementation of a call. Functions of a type that no value has (an authorizer) refuse every operand."""
    name = dispatch_name(function, member=member)
    return FUNCTIONS.get(name) or _by_types(name, {})


def _size(value: Any) -> int:
    if type(value) is str or type(value) is bytes:
        return len(value)
    if is_list(value):
        return list_size(value)
    if is_map(value):
        return map_size(value)
    raise refusal("size", (value,))


def _by_types(name: str, table: _Table) -> Function:
    """Make a function that dispatches on the exact types of all operands."""

    def call(*args: Any) -> Any:
        implementation = table.get(tuple([type(arg) for arg in args]))
        if implementation is None:
            raise refusal(name, args)
        return implementation(*args)

    return call


def _lists_first(name: str, on_list: Function, otherwise: Function) -> Function:
    """Make a function that takes a list and any second operand, and dispatches on types for other operands."""

    def call(*args: Any) -> Any:
        if len(args) == 2 and is_list(args[0]):
            return on_list(*args)
        return otherwise(*args)

    call.__name__ = name
    return call


def _tables() -> dict[str, _Table]:
    merged: dict[str, _Table] = {}
    for library in (
        CONVERSIONS,
        STRINGS,
        REGEX,
        LISTS,
        QUANTITIES,
        NETWORK,
        URLS,
        NAMED_FORMATS,
        FORMATS,
        OPTIONALS,
        accessors(),
    ):
        for name, table in library.items():
            merged.setdefault(name, {}).update(table)
    return merged


TABLES = _tables()
FUNCTIONS: dict[str, Function] = {
    **{name: _by_types(name, table) for name, table in TABLES.items()},
    "size": _size,
    "type": type_of_value,
    "dyn": lambda value: value,
    "includes": includes,
    "includes since 1.37": includes_all,
    **ANY_TO_OPTIONAL,
}
for _name, _on_list in LIST_AND_ANY.items():
    FUNCTIONS[_name] = _lists_first(_name, _on_list, FUNCTIONS[_name])
