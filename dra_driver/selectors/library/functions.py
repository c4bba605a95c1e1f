"""What functions do at run time: one table from names to implementations by operand types.

In: a function name. Out: a `Function` that picks the implementation by the types of its operands, or refuses them
with the server's text. Operators, lazily evaluated functions and field access are elsewhere (`compiler.py`,
`interpreter.py`).

Source: cel-go's dispatcher. A function whose operands fit no overload fails with "no such overload"; the text is
longer where the declaration guards its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.selectors.library.conversions import CONVERSIONS, type_of_value
from dra_driver.selectors.library.format import FORMATS
from dra_driver.selectors.library.lists import LIST_AND_ANY, LISTS, includes, includes_all, is_list
from dra_driver.selectors.library.named_formats import NAMED_FORMATS
from dra_driver.selectors.library.network import NETWORK
from dra_driver.selectors.library.optional import ANY_TO_OPTIONAL, OPTIONALS
from dra_driver.selectors.library.quantity import QUANTITIES
from dra_driver.selectors.library.regex import REGEX
from dra_driver.selectors.library.strings import STRINGS
from dra_driver.selectors.library.time import accessors
from dra_driver.selectors.library.url import URLS
from dra_driver.selectors.values.containers import is_map, list_size, map_size
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.type_names import type_name
from dra_driver.selectors.values.values import CelError, Duration, Timestamp

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
