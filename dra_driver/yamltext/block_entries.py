"""Removal and addition of entries in block mappings and block lists, where each entry is on lines of its own.

In: the spans of the entries, which of them stay, and new entries as text. Out: edits. Comments on removed entries stay,
on lines of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.yamltext.comments import Comments, above_comments, after_comments
from dra_driver.yamltext.edits import EditList, column, line_end, shares_line


@dataclass(frozen=True, slots=True)
class BlockEntries:
    """The entries of one block: `spans` from a key or dash to the end of the value."""

    text: str
    comments: Comments
    newline: str
    spans: list[tuple[int, int]]

    @property
    def _pad(self) -> str:
        return " " * column(self.text, self.spans[0][0])

    def change(self, edits: EditList, kept: list[bool], added: dict[int, list[str]], *, above: bool) -> None:
        """Remove the entries that are not `kept` (at least one must be), and insert the rows of `added`.

        `added` holds rows by the index of the entry that they follow (-1: before the first); all lines of a row but the
        first are indented already. With `above`, rows before the first entry also precede its comments.
        """
        first = kept.index(True)
        lifted = 0
        if first > 0 and shares_line(self.text, self.spans[0][0]):
            lifted = first
            self._lift(edits, first, added.get(-1, []))
        elif added.get(-1):
            self._put_first(edits, added[-1], is_kept=first == 0, above=above)
        for (start, end), stays in list(zip(self.spans, kept, strict=True))[lifted:]:
            if not stays:
                self._remove_lines(edits, start, end)
        for index, rows in added.items():
            if index >= 0:
                self._put_after(edits, self.spans[index][1], rows)

    def _lift(self, edits: EditList, first: int, rows: list[str]) -> None:
        """Remove the first entries of a block that begins on the line of a dash; the next one moves up to the dash."""
        start, following = self.spans[0][0], self.spans[first][0]
        lines = [*self.comments.within(start, following), *rows]
        edits.add(start, following, "".join(f"{line}{self.newline}{self._pad}" for line in lines))

    def _put_first(self, edits: EditList, rows: list[str], *, is_kept: bool, above: bool) -> None:
        start = self.spans[0][0]
        if shares_line(self.text, start) or (is_kept and not above):
            edits.add(start, start, "".join(f"{row}{self.newline}{self._pad}" for row in rows))
            return
        at = start - column(self.text, start)
        at = above_comments(self.text, at, column(self.text, start)) if above else at
        edits.add(at, at, "".join(f"{self._pad}{row}{self.newline}" for row in rows))

    def _put_after(self, edits: EditList, end: int, rows: list[str]) -> None:
        at = after_comments(self.text, end, len(self._pad))
        lines = self.newline.join(f"{self._pad}{row}" for row in rows)
        is_open = at > 0 and self.text[at - 1] != "\n"
        edits.add(at, at, f"{self.newline if is_open else ''}{lines}{self.newline}")

    def _remove_lines(self, edits: EditList, start: int, end: int) -> None:
        """Remove whole lines, but keep their comments."""
        first, last = start - column(self.text, start), line_end(self.text, end)
        comments = self.comments.within(start, last)
        edits.add(first, last, "".join(f"{self._pad}{comment}{self.newline}" for comment in comments))
