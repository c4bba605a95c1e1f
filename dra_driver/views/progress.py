"""The progress of a long task, for the person who waits for it.

In: a task and how much of it is done. Out: calls to a `ProgressLine`, which `cli` draws on a terminal; the default
shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class ProgressLine(Protocol):
    """The progress of one long task, shown to a person."""

    def update(self, done: int) -> None:
        """Show how many items are done. It is called for every item, so an implementation must be fast."""

    def close(self) -> None:
        """End the task."""


class NoProgress:
    """The progress of a task that is not shown."""

    def __init__(self, noun: str, total: int = 0) -> None:
        """Begin a task of `total` items (0: not known), which are called `noun` in the plural."""

    def update(self, done: int) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


ProgressLines = Callable[[str, int], ProgressLine]  # begins a task: a plural noun for its items; their number, or 0


def counted(things: Collection[_T], noun: str, lines: ProgressLines) -> Iterator[_T]:
    """Yield the items, and show how many are done."""
    line = lines(noun, len(things))
    try:
        for done, one in enumerate(things):
            line.update(done)
            yield one
    finally:
        line.close()
