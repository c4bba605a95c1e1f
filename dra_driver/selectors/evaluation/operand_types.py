"""Operand types: whether operands have the types of the one overload to which the checker has bound a call.

In: the parameters of an overload, and values. Out: whether the overload accepts them. This matters where a type was
left open, as in `dyn(["a"]).distinct()[0]`: the checker binds the call to the first overload that fits, but the value
may have another type.

Source: cel-go, Type.IsAssignableRuntimeType, which looks at the first element of a list and the first entry of a map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dra_driver.selectors.library.functions import UNGUARDED, refusal
from dra_driver.selectors.library.lists import is_list
from dra_driver.selectors.values.containers import is_map, map_items, unfold
from dra_driver.selectors.values.type_names import runtime_type_name, type_name
from dra_driver.selectors.values.types import Type

_ANY = frozenset({"dyn", "any", "param"})


def guarded(name: str, params: Sequence[Type], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses operands which the overload does not accept; without parameters it accepts any."""
    if not params or name in UNGUARDED:
        return call

    def checked(*values: Any) -> Any:
        if not _accept(params, values):
            raise refusal(name, values)
        return call(*values)

    return checked


def _accept(params: Sequence[Type], values: Sequence[Any]) -> bool:
    return all(_accepts(param, value) for param, value in zip(params, values, strict=True))


def _accepts(param: Type, value: Any) -> bool:
    if param.kind in _ANY:
        return True
    if is_list(value):
        elements = unfold(value)
        return param.kind == "list" and (not elements or _accepts(param.params[0], elements[0]))
    if is_map(value):
        first = next(iter(map_items(value)), None)
        return param.kind == "map" and (first is None or _accept(param.params, first))
    return runtime_type_name(param) == type_name(value)
