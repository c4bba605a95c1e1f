"""Patterns of JSON: the text of one object, in which the texts at some places may differ.

In: the text of an object that was parsed, and which places may be open. Out: whether another text is the same but for
what stands at the open places, and what stands there. Such a text needs no parsing: its value is that of the first one
with these texts put in. It is exact, because only plain texts (without escapes) at places of values are ever open.

Source: RFC 8259, section 7 (what a string without escapes may hold).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Step = str | int
Path = tuple[Step, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')


class OpenText:
    """The text of an object, taken apart at the places that may be open.

    `paths` are these places, `values` what stands there, and `pieces` what stands around them, quotes included: one
    more than there are places.
    """

    __slots__ = ("paths", "pieces", "values")

    def __init__(self, text: str, may_be_open: Callable[[Path], bool]) -> None:
        self.paths: list[Path] = []
        self.values: list[str] = []
        pieces, begin = [], 0
        for path, start, end in _texts(text):
            if may_be_open(path):
                self.paths.append(path)
                self.values.append(text[start:end])
                pieces.append(text[begin:start])
                begin = end
        self.pieces = (*pieces, text[begin:])

    def is_true_to(self, value: Any) -> bool:
        """Return whether each place leads to what stands there; not so where an object has a name twice."""
        return len(set(self.paths)) == len(self.paths) and all(
            at(value, path) == held for path, held in zip(self.paths, self.values, strict=True)
        )


class JsonPattern:
    """The text of an object that is open at some of its places (`holes`, numbers of places)."""

    __slots__ = ("_pieces", "paths")

    def __init__(self, base: OpenText, holes: Iterable[int]) -> None:
        numbers = sorted(holes)
        self.paths = tuple(base.paths[number] for number in numbers)
        pieces, begin = [], 0
        for number in (*numbers, len(base.paths)):
            closed = zip(base.pieces[begin:number], base.values[begin:number], strict=True)
            pieces.append("".join([*(part for pair in closed for part in pair), base.pieces[number]]))
            begin = number + 1
        self._pieces = tuple(pieces)

    def match(self, text: str, place: int) -> tuple[list[str], int] | None:
        """Return what stands at the holes, and where the object ends; None where another object begins at a place."""
        values: list[str] = []
        first, *rest = self._pieces
        if not text.startswith(first, place):
            return None
        place += len(first)
        plain = _PLAIN.match
        for piece in rest:
            found = plain(text, place)
            end = found.end() if found else place
            if not text.startswith(piece, end):
                return None
            values.append(text[place:end])
            place = end + len(piece)
        return values, place


def at(value: Any, path: Path) -> Any:
    """Return what is at a place of a value; None where the value has no such place."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put_in(value: Any, changes: Sequence[tuple[Path, str]], done: int = 0) -> Any:
    """Return a value with other texts at some places, copied where it differs; paths are read from step `done` on."""
    if len(changes) == 1 and len(changes[0][0]) == done:
        return changes[0][1]
    made = value.copy()
    by_step: dict[Step, list[tuple[Path, str]]] = {}
    for change in changes:
        by_step.setdefault(change[0][done], []).append(change)
    for step, inner in by_step.items():
        made[step] = put_in(value[step], inner, done + 1)
    return made


def _texts(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield the place of each value that is a text without escapes, and where it begins and ends between its quotes."""
    steps: list[Step] = []
    is_key = False
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign == "{":
            steps.append("")
            is_key = True
        elif sign == "[":
            steps.append(0)
            is_key = False
        elif sign in "}]":
            steps.pop()
            is_key = False
        elif sign == ",":
            last = steps[-1]
            is_key = isinstance(last, str)
            if isinstance(last, int):
                steps[-1] = last + 1
        elif sign[0] == '"':
            if is_key:
                steps[-1], is_key = sign[1:-1], False
            elif "\\" not in sign:
                yield tuple(steps), token.start() + 1, token.end() - 1
