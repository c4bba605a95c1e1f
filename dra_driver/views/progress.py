"""How a view tells whoever waits for it how far it has come.

In: the progress of a long task. Out: calls to a `ProgressLine`, which `cli` draws on a terminal; the default shows
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class ProgressLine(Protocol):
    """The progress of one long task, shown to a person."""

    def tell(self, done: int) -> None:
        """Take how many items are done; called for every item, so an implementation must be fast."""

    def close(self) -> None:
        """End the task."""


class NoProgress:
    """The progress of a task that nobody watches."""

    def __init__(self, noun: str, total: int = 0) -> None:
        """Begin a task of `total` items (0: not known), which are called `noun` in the plural."""

    def tell(self, done: int) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


ProgressLines = Callable[[str, int], ProgressLine]  # begins a task: the items in the plural; their number, or 0


def counted(things: Collection[_T], noun: str, lines: ProgressLines) -> Iterator[_T]:
    """Yield the items, and report how many are done."""
    line = lines(noun, len(things))
    try:
        for done, one in enumerate(things):
            line.tell(done)
            yield one
    finally:
        line.close()
