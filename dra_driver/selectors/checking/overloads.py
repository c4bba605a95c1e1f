"""Overloads: which functions of a name accept operands of given types, and the type of the result.

In: a name, the types of operands, and what is known of type parameters. Out: the ids of the candidates with the type of
the result. A resolution in which no type is open is the same for every expression, and is remembered.

Source: cel-go's checker.
"""

from __future__ import annotations

from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.values.bindings import Bindings
from dra_driver.selectors.values.types import (
    DYN,
    Type,
)


class Overloads:
    """The overloads of the declarations, as far as the bindings of one expression allow them."""

    __slots__ = ("_bindings", "_declarations")

    def __init__(self, declarations: Declarations, bindings: Bindings) -> None:
        self._declarations = declarations
        self._bindings = bindings

    def resolve(self, function: str, types: list[Type], *, member: bool) -> tuple[tuple[str, ...], Type] | None:
        """Return the candidates' ids and the type of the result, or None where nothing matches."""
        key = None
        closed = True
        for t in types:
            if not t.closed:
                closed = False
                break
        if closed:
            key = (function, member, *[t.key for t in types])
            known = self._declarations.resolutions.get(key)
            if known is not None:
                return known
        ids, result = self._candidates(function, types, member=member)
        if result is None:
            return None
        if key is not None and result.closed:
            self._declarations.remember(key, tuple(ids), result)
        return tuple(ids), result

    def _candidates(self, function: str, types: list[Type], *, member: bool) -> tuple[list[str], Type | None]:
        ids: list[str] = []
        result: Type | None = None
        for overload in self._declarations.overloads(function):
            if overload.member is not member or len(overload.params) != len(types):
                continue
            params, outcome = list(overload.params), overload.result
            if overload.variables:
                fresh = {name: self._bindings.fresh() for name in overload.variables}
                params = [_instantiate(t, fresh) for t in params]
                outcome = _instantiate(outcome, fresh)
            if not self._bindings.assignable_all(types, params):
                continue
            ids.append(overload.id)
            outcome = self._bindings.substitute(outcome, unbound_to_dyn=False)
            if result is None:
                result = outcome
            elif result.kind not in {"dyn", "any"} and outcome != result:
                result = DYN
        return ids, result


def _instantiate(t: Type, fresh: dict[str, Type]) -> Type:
    if t.closed:
        return t
    if t.kind == "param":
        return fresh[t.name]
    return Type(t.kind, t.name, tuple([_instantiate(inner, fresh) for inner in t.params]))
