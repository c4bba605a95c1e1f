"""What estimate rules take and return: operands, and a call's highest cost and the size of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dra_driver.selectors.checking.sizes import ITEMS, UNKNOWN, Path, Size, device_size
from dra_driver.selectors.syntax.nodes import Call, Literal, Node
from dra_driver.selectors.values.types import Type


class Estimate(NamedTuple):
    """The most that a call may cost (with `whole`, including its operands), and the size of its result if known."""

    cost: int
    size: Size | None = None
    whole: bool = False


class Operand(NamedTuple):
    """An operand, with what was known about it when it was visited."""

    node: Node
    path: Path
    known: Size | None

    @property
    def size(self) -> Size | None:
        """The size, or None if it is unknown."""
        return self.known

    @property
    def span(self) -> Size:
        """The size, or the full range if it is unknown."""
        return self.known if self.known is not None else UNKNOWN


Rule = Callable[[Call, str, "Operand | None", list[Operand]], "Estimate | None"]


CALL, ALLOCATION = 1, 10


TEXT = frozenset({"string", "bytes"})


def literal_int(operand: Operand, default: int) -> int:
    """Return the value of an int literal, with 0 for a negative one; return the default for any other operand."""
    node = operand.node
    if type(node) is Literal and type(node.value) is int:
        return max(node.value, 0)
    return default


def element_of(operand: Operand) -> tuple[Type, Size] | None:
    """Return the type and size of the elements of a list, or None if the operand is not a container."""
    params = operand.node.type.params
    if not params:
        return None
    size = device_size([*operand.path.steps(), ITEMS]) if operand.path.length else None
    return params[0], size if size is not None else UNKNOWN
