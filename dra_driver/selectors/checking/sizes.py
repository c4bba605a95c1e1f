"""Sizes and paths: the arithmetic of the cost estimate.

A size is a pair (least, most) of unsigned 64-bit numbers that saturate. A path says where in `device` a value comes
from. It behaves like a Go slice because the server's estimate depends on that: appending to a path whose backing array
has room overwrites what another path sees in the same array.

Source: cel-go's checker.SizeEstimate; Kubernetes' size estimator for device selectors.
"""

from __future__ import annotations

import math

Size = tuple[int, int]

MAX = 2**64 - 1
_TWO_TO_64 = float(2**64)
UNKNOWN: Size = (0, MAX)
ONE: Size = (1, 1)
TRAVERSAL = 0.1  # cost of touching one character of a string
REGEX = 0.25  # cost of one character of a pattern


def add(left: int, right: int) -> int:
    """Add two numbers; the sum saturates at 2^64 - 1."""
    total = left + right
    return min(total, MAX)


def multiply(left: int, right: int) -> int:
    """Multiply two numbers; the product saturates at 2^64 - 1."""
    product = left * right
    return min(product, MAX)


def scale(number: int, factor: float) -> int:
    """Multiply by a cost factor as the server does: in doubles, rounded up, saturating at 2^64 - 1."""
    inexact = float(number)
    if inexact > 0 and factor > 0 and inexact > _TWO_TO_64 / factor:
        return MAX
    scaled = math.ceil(inexact * factor)
    return scaled if scaled < 2**64 else MAX


def union(left: Size, right: Size) -> Size:
    """Return the range that covers both."""
    return min(left[0], right[0]), max(left[1], right[1])


def plus(left: Size, right: Size) -> Size:
    """Add two ranges."""
    return add(left[0], right[0]), add(left[1], right[1])


def times(left: Size, right: Size) -> Size:
    """Multiply two ranges."""
    return multiply(left[0], right[0]), multiply(left[1], right[1])


class Path:
    """A view of the first `length` elements of a backing array that other paths may share."""

    __slots__ = ("array", "length")

    def __init__(self, array: list[str], length: int) -> None:
        self.array = array
        self.length = length

    def append(self, step: str) -> Path:
        """Return a path with one more step; it uses the same array if that has room."""
        if self.length < len(self.array):
            self.array[self.length] = step
            return Path(self.array, self.length + 1)
        array = self.array[: self.length] + [step] + [""] * (max(1, 2 * self.length) - self.length - 1)
        return Path(array, self.length + 1)

    def steps(self) -> list[str]:
        """Return the current steps."""
        return self.array[: self.length]


NO_PATH = Path([], 0)
ITEMS, KEYS, VALUES, INDICES = "@items", "@keys", "@values", "@indices"

# The most characters of a driver name, of a domain and of a name, entries of a map, and characters of a value.
_DRIVER, _DOMAIN, _NAME, _ENTRIES, _VALUE = 63, 63, 32, 32, 64


def device_size(path: list[str]) -> Size | None:
    """Return the size of a value taken from `device`, or None where the server knows none.

    Source: Kubernetes API resource/v1 limits (DeviceMaxDomainLength, DeviceMaxIDLength, DriverNameMaxLength,
    DeviceAttributeMaxValueLength, ResourceSliceMaxAttributesAndCapacitiesPerDevice).
    """
    if not path or path[0] != "device":
        return None
    if len(path) == 1:
        return 0, 0
    field, rest = path[1], path[2:]
    if field in {"driver", "allowMultipleAllocations"}:
        return None if rest else (0, _DRIVER if field == "driver" else 1)
    if field not in {"attributes", "capacity"}:
        return None
    if not rest:
        return 0, _ENTRIES
    outer, rest = rest[0], rest[1:]
    if outer == KEYS:
        return None if rest else (0, _DOMAIN)
    if outer not in {VALUES, ITEMS}:
        return None
    if not rest:
        return 0, _ENTRIES
    inner, rest = rest[0], rest[1:]
    if rest:
        return None
    if inner == KEYS:
        return 0, _NAME
    if field == "attributes":
        return 0, _VALUE
    return (0, 0) if inner in {VALUES, ITEMS} else None
