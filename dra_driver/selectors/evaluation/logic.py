"""Closures for the logical operators.

In: closures of the operands. Out: the closure of `&&`, `||`, `!`, or the ternary. An operand's error is absorbed where
another operand decides.

Source: cel-go's logical operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.values import CelError

Closure = Callable[[Any], Any]


def all_of(terms: list[Closure]) -> Closure:
    """Make the closure of a conjunction: it is false as soon as one term is false, even if other terms fail."""
    chain = tuple(terms)

    def conjunction(frame: Any) -> bool:
        failed: CelError | None = None
        for term in chain:
            try:
                value = term(frame)
            except CelError as error:
                failed = failed or error
                continue
            if value is False:
                return False
            if value is not True:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if failed is not None:
            raise failed
        return True

    return conjunction


def any_of(terms: list[Closure]) -> Closure:
    """Make the closure of a disjunction: it is true as soon as one term is true, even if other terms fail."""
    chain = tuple(terms)

    def disjunction(frame: Any) -> bool:
        failed: CelError | None = None
        for term in chain:
            try:
                value = term(frame)
            except CelError as error:
                failed = failed or error
                continue
            if value is True:
                return True
            if value is not False:
                failed = failed or CelError(NO_SUCH_OVERLOAD)
        if failed is not None:
            raise failed
        return False

    return disjunction


def negation(operand: Closure) -> Closure:
    """Make the closure of `!`."""

    def negate(frame: Any) -> bool:
        value = operand(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise CelError(NO_SUCH_OVERLOAD)

    return negate


def choose(condition: Closure, then: Closure, otherwise: Closure) -> Closure:
    """Make the closure of the ternary operator."""

    def conditional(frame: Any) -> Any:
        value = condition(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise CelError(NO_SUCH_OVERLOAD)

    return conditional
