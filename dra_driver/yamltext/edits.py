"""Edits of a text, which are applied together, and functions that locate lines and columns.

In: a text and `Edit`s. Out: the new text. Never: edits that overlap, because one of them would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace `text[start:end]` by `new`. Edits at the same place apply in the order of `rank`."""

    start: int
    end: int
    rank: int
    new: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class EditList:
    """A list of edits under construction; edits at the same place apply in the order in which they were added."""

    edits: list[Edit] = field(default_factory=list)

    def add(self, start: int, end: int, new: str) -> None:
        """Replace `text[start:end]` by `new`."""
        self.edits.append(Edit(start, end, len(self.edits), new))


class OverlapError(ValueError):
    """Two edits change the same part of a text."""


def applied(text: str, edits: list[Edit]) -> str:
    """Return the text with all edits applied. Raises: OverlapError."""
    parts, at = [], 0
    for edit in sorted(edits):
        if edit.start < at:
            raise OverlapError(f"two edits of the text at {edit.start}")
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*parts, text[at:]])


def column(text: str, index: int) -> int:
    """Return the column of an index, counted from 0."""
    return index - (text.rfind("\n", 0, index) + 1)


def shares_line(text: str, index: int) -> bool:
    """Return whether anything but blanks precedes an index on its line, such as the dash of an item."""
    return bool(text[index - column(text, index) : index].strip())


def line_end(text: str, at: int) -> int:
    """Return the start of the next line, or `at` itself if a line starts there."""
    if at > 0 and text[at - 1] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1
