"""The text of an expression, and the faults found in it.

In: offsets (code points from the start of the text). Out: Kubernetes' error blocks, sorted and counted. It knows
lines and columns, but no grammar.

Source: cel-go's common.Errors (line and column, the dotted marker line, at most 100 errors).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

NOWHERE = -1  # the offset of a fault that concerns the whole text
_MAX_FAULTS = 100


@dataclass(frozen=True, slots=True)
class SyntaxFault:
    """One fault: its offset (or NOWHERE) and its message."""

    offset: int
    message: str


class ExpressionText:
    """The text of one expression."""

    __slots__ = ("_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: list[int] | None = None

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of an offset, both from 1."""
        if offset == NOWHERE:
            return -1, 0
        if not self.text:
            return 1, 0
        starts = self._line_starts()
        line = bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def report(self, faults: list[SyntaxFault]) -> tuple[str, tuple[int, int]]:
        """Format faults as the compiler prints them; return the text and the position of the first fault."""
        located = sorted(((self.position(fault.offset), fault.message) for fault in faults), key=lambda one: one[0])
        kept = located[:_MAX_FAULTS]
        blocks = [self._block(position, message) for position, message in kept]
        if len(located) > len(kept):
            blocks.append(f"{len(located) - len(kept)} more errors were truncated")
        return "\n".join(blocks), located[0][0]

    def _line_starts(self) -> list[int]:
        if self._starts is None:
            starts = [0]
            found = self.text.find("\n")
            while found >= 0:
                starts.append(found + 1)
                found = self.text.find("\n", found + 1)
            self._starts = starts
        return self._starts

    def _block(self, position: tuple[int, int], message: str) -> str:
        line, column = position
        head = f"ERROR: <input>:{line}:{column}: {message}"
        if line < 1 or not self.text:
            return head
        starts = self._line_starts()
        end = starts[line] - 1 if line < len(starts) else len(self.text)
        shown = self.text[starts[line - 1] : end].replace("\t", " ")
        before = "".join("．" if ord(char) > 127 else "." for char in shown[: column - 1])  # noqa: RUF001
        marked = shown[column - 1 : column]
        return f"{head}\n | {shown}\n | {before}{'＾' if marked and ord(marked) > 127 else '^'}"  # noqa: RUF001
