"""JSON patterns: find out without parsing whether an object differs from another one only in some strings.

In: the text of an object that was parsed, and the places whose strings may vary, which are called open. Out: whether
another text is the same except at the open places, and the strings that it has there. Such a text need not be parsed:
its value is that of the first one with these strings at the open places. This is exact, because only strings without
escapes are ever open, and of these only values, not names. This module is for JSON; for YAML see `yaml_text`.

Source: RFC 8259, section 7 (what a string without escapes may hold).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Step = str | int
Path = tuple[Step, ...]
OpenString = tuple[Path, int, int, re.Pattern[str]]
"""A string in a text: the path to it, where it begins and ends, and the pattern of strings that may replace it."""
Opener = Callable[[str, Callable[[Path], bool]], "OpenText | None"]
"""A function that takes the text of an object apart: `open_json`, or the same for another format."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')


class OpenText:
    """The text of an object, taken apart at the places that may be open.

    `paths` lead to these places, `values` are the strings there, `plain` the patterns of strings that may replace them,
    and `pieces` the text around them, quotes included: one more than there are places.
    """

    __slots__ = ("paths", "pieces", "plain", "values")

    def __init__(self, text: str, places: Iterable[OpenString]) -> None:
        self.paths: list[Path] = []
        self.values: list[str] = []
        self.plain: list[re.Pattern[str]] = []
        pieces, begin = [], 0
        for path, start, end, plain in places:
            self.paths.append(path)
            self.values.append(text[start:end])
            self.plain.append(plain)
            pieces.append(text[begin:start])
            begin = end
        self.pieces = (*pieces, text[begin:])

    def agrees_with(self, value: Any) -> bool:
        """Return whether each path leads to the string at its place; it does not if an object has a name twice."""
        return len(set(self.paths)) == len(self.paths) and all(
            at(value, path) == held for path, held in zip(self.paths, self.values, strict=True)
        )


def open_json(text: str, may_be_open: Callable[[Path], bool]) -> OpenText | None:
    """Return the text of a JSON object, taken apart; None if it has a null, which may mean that a field is not set.

    `may_be_open` returns whether the string at a path may be open.
    """
    if "null" in text:
        return None
    return OpenText(text, ((path, start, end, _PLAIN) for path, start, end in _texts(text) if may_be_open(path)))


class TextPattern:
    """The text of an object whose strings may vary at some places; `holes` are the numbers of these in `base`."""

    __slots__ = ("_pieces", "_plain", "paths")

    def __init__(self, base: OpenText, holes: Iterable[int]) -> None:
        numbers = sorted(holes)
        self.paths = tuple(base.paths[number] for number in numbers)
        self._plain = tuple(base.plain[number].match for number in numbers)
        pieces, begin = [], 0
        for number in (*numbers, len(base.paths)):
            closed = zip(base.pieces[begin:number], base.values[begin:number], strict=True)
            pieces.append("".join([*(part for pair in closed for part in pair), base.pieces[number]]))
            begin = number + 1
        self._pieces = tuple(pieces)

    def match(self, text: str, place: int) -> tuple[list[str], int] | None:
        """Return the strings at the open places, and where the object ends; None if the text at `place` differs."""
        values: list[str] = []
        first, *rest = self._pieces
        if not text.startswith(first, place):
            return None
        place += len(first)
        for piece, plain in zip(rest, self._plain, strict=True):
            found = plain(text, place)
            if found is None or not text.startswith(piece, found.end()):
                return None
            values.append(found[0])
            place = found.end() + len(piece)
        return values, place


def at(value: Any, path: Path) -> Any:
    """Return the part of a value that a path leads to; None if there is no such part."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put_in(value: Any, changes: Sequence[tuple[Path, str]], done: int = 0) -> Any:
    """Return a value with other strings at some paths; only the parts that differ are copied.

    The first `done` steps of each path already lead to `value`.
    """
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
    """Yield the path to each value that is a string without escapes, and where it begins and ends inside its quotes."""
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
