"""Removal and addition of entries within braces and brackets, together with their commas.

In: the spans of the entries, which of them stay, and new entries as text. Out: edits. Comments between removed entries
stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.yamltext.comments import Comments
from dra_driver.yamltext.edits import EditList, column


@dataclass(frozen=True, slots=True)
class FlowEntries:
    """The entries of one flow collection, whose content is `text[inner:close]`."""

    text: str
    comments: Comments
    newline: str
    spans: list[tuple[int, int]]
    inner: int
    close: int

    @property
    def is_wide(self) -> bool:
        """Whether the first entry begins on a line of its own."""
        return bool(self.spans) and "\n" in self.text[self.inner : self.spans[0][0]]

    @property
    def indent(self) -> int:
        """The column of the entries if they are on lines of their own, otherwise 0."""
        return column(self.text, self.spans[0][0]) if self.is_wide else 0

    def change(self, edits: EditList, kept: list[bool], added: dict[int, list[str]]) -> None:
        """Remove the entries that are not `kept`; add rows by the index of the entry before them (-1: at the front)."""
        comma = f",{self.newline}{' ' * self.indent}" if self.is_wide else ", "
        if not any(kept):
            content = comma.join(row for position in sorted(added) for row in added[position])
            if content or kept:
                self._refill(edits, content)
            return
        self._remove_runs(edits, kept)
        for position, rows in added.items():
            at = next((index for index in range(position, -1, -1) if kept[index]), None)
            if at is None:
                first = self.spans[kept.index(True)][0]
                edits.add(first, first, comma.join([*rows, ""]))
            else:
                edits.add(self.spans[at][1], self.spans[at][1], "".join(comma + row for row in rows))

    def _refill(self, edits: EditList, content: str) -> None:
        """Replace everything between the braces."""
        pad = f"{self.newline}{' ' * (self.indent or column(self.text, self.inner))}"
        comments = "".join(f" {comment}{pad}" for comment in self.comments.within(self.inner, self.close))
        lead, tail = "", ""
        if content and self.is_wide and not comments:
            inside = self.text[self.inner : self.close]
            lead, tail = self.text[self.inner : self.spans[0][0]], inside[len(inside.rstrip()) :]
        edits.add(self.inner, self.close, f"{lead}{comments}{content}{tail}")

    def _remove_runs(self, edits: EditList, kept: list[bool]) -> None:
        """Remove entries, each run of them together with one comma."""
        index = 0
        while index < len(self.spans):
            if kept[index]:
                index += 1
                continue
            first = index
            while index < len(self.spans) and not kept[index]:
                index += 1
            if index < len(self.spans):
                start, end = self.spans[first][0], self.spans[index][0]
                pad = " " * column(self.text, start)
                comments = "".join(f" {one}{self.newline}{pad}" for one in self.comments.within(start, end))
            else:
                start, end = self.spans[first - 1][1], self.spans[-1][1]
                pad = " " * column(self.text, self.inner)
                comments = "".join(f" {one}{self.newline}{pad}" for one in self.comments.within(start, end))
            edits.add(start, end, comments)
