"""Kubernetes quantities and semantic versions in expressions.

In: texts, quantities, versions. Out: quantities, versions, numbers, or a `CelError` with Kubernetes' text. The
arithmetic itself is in `model/`.

Source: Kubernetes' CEL quantity and semver libraries.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.semver import Semver, SemverError, normalize
from dra_driver.selectors.values.values import CelError, CelQuantity

_SHORT = 64


def to_quantity(text: str) -> CelQuantity:
    """Evaluate quantity(). Each call makes a quantity of its own, as the server finds one in a map by identity."""
    return CelQuantity(interned_quantity(text).number)


def interned_quantity(text: str) -> CelQuantity:
    """Return the quantity that all devices with this text share.

    Raises:
        CelError: The text is not a quantity.
    """
    return _interned(text) if len(text) <= _SHORT else _interned.__wrapped__(text)


@lru_cache(maxsize=4096)
def _interned(text: str) -> CelQuantity:
    try:
        return CelQuantity(Quantity.parse(text))
    except QuantityError as error:
        raise CelError(error.message) from error


def to_semver(text: str, lenient: bool = False) -> Semver:
    """Evaluate semver()."""
    try:
        return Semver.parse(normalize(text) if lenient else text)
    except SemverError as error:
        raise CelError(error.message) from error


def _is(read: Any) -> Any:
    def test(*args: Any) -> bool:
        try:
            read(*args)
        except CelError:
            return False
        return True

    return test


def _as_integer(value: CelQuantity) -> int:
    number = value.number.as_int64()
    if number is None:
        raise CelError("cannot convert value to integer")
    return number


def _whole(value: CelQuantity | int) -> Quantity:
    return value.number if isinstance(value, CelQuantity) else Quantity.of(value)


def _add(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
    try:
        return CelQuantity(left.number.add(_whole(right)), computed=True)
    except QuantityError as error:
        raise CelError(error.message) from error


def _sub(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
    try:
        return CelQuantity(left.number.sub(_whole(right)), computed=True)
    except QuantityError as error:
        raise CelError(error.message) from error


def _fresh(text: str) -> CelQuantity:
    """Evaluate quantity() for a result that may be changed later."""
    return CelQuantity(to_quantity(text).number)


def _changing(operation: Any) -> Any:
    """Make add or sub as they are up to 1.36.

    A number that does not fit an int64 is changed in place, and the result shares it.

    Source: Kubernetes' quantity library before 1.37, which copies a quantity without the number behind it.
    """

    def change(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
        result: CelQuantity = operation(left, right)
        if left.number.machine:
            return result
        left.aliases = left.aliases or [left]
        left.aliases.append(result)
        result.aliases = left.aliases
        total = result.number
        for one in left.aliases:
            one.number = Quantity(total.unscaled, total.scale, one.number.format, machine=False)
        return result

    return change


def _int64(number: int) -> int:
    """Wrap an unsigned number as the server's conversion does."""
    return number - 2**64 if number >= 2**63 else number


_TWO_QUANTITIES, _TWO_VERSIONS = (CelQuantity, CelQuantity), (Semver, Semver)

QUANTITIES: dict[str, dict[tuple[type, ...], Any]] = {
    "quantity": {(str,): to_quantity},
    "isQuantity": {(str,): _is(to_quantity)},
    "sign": {(CelQuantity,): lambda value: value.number.sign},
    "isInteger": {(CelQuantity,): lambda value: value.number.as_int64() is not None},
    "asInteger": {(CelQuantity,): _as_integer},
    "asApproximateFloat": {(CelQuantity,): lambda value: value.number.as_float()},
    "add": {_TWO_QUANTITIES: _add, (CelQuantity, int): _add},
    "sub": {_TWO_QUANTITIES: _sub, (CelQuantity, int): _sub},
    "quantity up to 1.36": {(str,): _fresh},
    "add up to 1.36": {_TWO_QUANTITIES: _changing(_add), (CelQuantity, int): _changing(_add)},
    "sub up to 1.36": {_TWO_QUANTITIES: _changing(_sub), (CelQuantity, int): _changing(_sub)},
    "isGreaterThan": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number) > 0,
        _TWO_VERSIONS: lambda left, right: left.compare(right) > 0,
    },
    "isLessThan": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number) < 0,
        _TWO_VERSIONS: lambda left, right: left.compare(right) < 0,
    },
    "compareTo": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number),
        _TWO_VERSIONS: lambda left, right: left.compare(right),
    },
    "semver": {(str,): to_semver, (str, bool): to_semver},
    "isSemver": {(str,): _is(to_semver), (str, bool): _is(to_semver)},
    "major": {(Semver,): lambda value: _int64(value.major)},
    "minor": {(Semver,): lambda value: _int64(value.minor)},
    "patch": {(Semver,): lambda value: _int64(value.patch)},
}
