"""Bindings: what type parameters stand for, and which type is assignable to which.

In: types found by the checker. Out: whether one is assignable to another, and what its parameters are bound to if so.
Source: cel-go's checker (assignability, substitution, occurs check).
"""

from __future__ import annotations

from dra_driver.selectors.values.types import DYN, NULLABLE, WILD, Type


def equal_or_less_specific(left: Type, right: Type) -> bool:
    """Return whether `left` is equal to `right` or less specific than it."""
    if left.kind in {"dyn", "any", "param"}:
        return True
    if right.kind in {"dyn", "any", "param"} or left.kind != right.kind:
        return False
    if left.kind in {"opaque", "list", "map"}:
        if left.name != right.name or len(left.params) != len(right.params):
            return False
        for mine, theirs in zip(left.params, right.params, strict=True):  # noqa: SIM110  (no generator frames)
            if not equal_or_less_specific(mine, theirs):
                return False
        return True
    return left.kind == "type" or left == right


def most_general(left: Type, right: Type) -> Type:
    """Return the more general of two types that unify."""
    return left if equal_or_less_specific(left, right) else right


class Bindings:
    """What the type parameters of one expression are bound to.

    A trail of changes undoes a failed attempt, so a failed overload costs only what it touched, not the whole store.
    """

    __slots__ = ("_bound", "_fresh", "_trail")

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._trail: list[tuple[str, Type | None]] = []
        self._fresh = 0

    def fresh(self) -> Type:
        """Make a new type variable."""
        variable = Type("param", f"_var{self._fresh}")
        self._fresh += 1
        return variable

    def assignable(self, left: Type, right: Type) -> bool:
        """Return whether the types unify; bindings are kept only if they do."""
        if left is right and left.closed:
            return True
        mark = len(self._trail)
        if self._assign(left, right):
            return True
        self._roll_back(mark)
        return False

    def assignable_all(self, lefts: list[Type], rights: list[Type]) -> bool:
        """Return whether two lists of types unify pairwise; bindings are kept only if all do."""
        if len(lefts) != len(rights):
            return False
        mark = len(self._trail)
        for left, right in zip(lefts, rights, strict=True):
            if not self._assign(left, right):
                self._roll_back(mark)
                return False
        return True

    def substitute(self, t: Type, *, unbound_to_dyn: bool) -> Type:
        """Replace bound parameters by their types; on request also replace unbound ones by dyn."""
        if t.closed:
            return t
        if t.kind == "param":
            bound = self._bound.get(t.name)
            if bound is not None:
                return self.substitute(bound, unbound_to_dyn=unbound_to_dyn)
            return DYN if unbound_to_dyn else t
        params = []
        for inner in t.params:
            params.append(self.substitute(inner, unbound_to_dyn=unbound_to_dyn))  # noqa: PERF401  (no extra frame)
        return Type(t.kind, t.name, tuple(params))

    def _roll_back(self, mark: int) -> None:
        while len(self._trail) > mark:
            name, old = self._trail.pop()
            if old is None:
                del self._bound[name]
            else:
                self._bound[name] = old

    def _bind(self, name: str, t: Type) -> None:
        self._trail.append((name, self._bound.get(name)))
        self._bound[name] = t

    def _assign(self, left: Type, right: Type) -> bool:
        if right.kind == "param":
            valid, had = self._substitutes(left, right)
            if valid:
                return True
            if had:
                return False
        if left.kind == "param":
            return self._substitutes(right, left)[0]
        if left.kind in WILD or right.kind in WILD:
            return True
        if left.kind == "null":
            return right.kind in NULLABLE or right.kind == "null"
        if right.kind == "null":
            return left.kind in NULLABLE
        if left.kind == "wrapper" or right.kind == "wrapper":
            return (left.params[0] if left.kind == "wrapper" else left) == (
                right.params[0] if right.kind == "wrapper" else right
            )
        if left.kind == "type":
            return right.kind == "type"
        if not left.params:
            return left == right
        if left.kind != right.kind or left.name != right.name or len(left.params) != len(right.params):
            return False
        for mine, theirs in zip(left.params, right.params, strict=True):  # noqa: SIM110  (no generator frames)
            if not self._assign(mine, theirs):
                return False
        return True

    def _substitutes(self, t: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether `t` can stand for the variable, and whether the variable was bound already."""
        if t.kind == "param" and t.name == variable.name:
            return True, True
        bound = self._bound.get(variable.name)
        if bound is None:
            if self._occurs(variable, t):
                return False, False
            self._bind(variable.name, t)
            return True, False
        if t == bound:
            return True, True
        if not self._assign(t, bound):
            return False, True
        general = most_general(t, bound)
        if not self._occurs(variable, general):
            self._bind(variable.name, general)
        return True, True

    def _occurs(self, variable: Type, within: Type) -> bool:
        if within.closed:
            return False
        if within.kind == "param":
            if within.name == variable.name:
                return True
            bound = self._bound.get(within.name)
            return bound is not None and self._occurs(variable, bound)
        for inner in within.params:  # noqa: SIM110  (no generator frames)
            if self._occurs(variable, inner):
                return True
        return False

    def join(self, previous: Type | None, current: Type) -> Type:
        """Return the common type of one more element (`current`) and those before it (`previous`, None if none)."""
        if previous is None:
            return current
        if self.assignable(previous, current):
            return most_general(previous, current)
        return DYN
