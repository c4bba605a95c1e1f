"""Edits of a text, and the facts about it that they need: where lines end, and which comments a piece of it holds.

In: a text. Out: `Edit`s, which are applied together and never overlap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace `text[start:end]` by `new`. Edits at the same place apply in the order of `rank`."""

    start: int
    end: int
    rank: int
    new: str = field(compare=False)


def applied(text: str, edits: list[Edit]) -> str:
    """Return the text with all edits applied; they must not overlap."""
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.new]
        at = max(at, edit.end)
    return "".join([*parts, text[at:]])


def is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal as JSON is: types and the order of keys count."""
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(is_same(one, new[key]) for key, one in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_same, old, new))
    if isinstance(old, str) and isinstance(new, str):
        return str(old) == str(new)
    return type(old) is type(new) and bool(old == new)


def comments_in(text: str, start: int, end: int) -> list[str]:
    """Return the comments in a piece of text, which must not begin inside a comment."""
    return [found["note"].rstrip() for found in _PIECES.finditer(text, start, end) if found["note"]]


def line_end(text: str, at: int) -> int:
    """Return the start of the next line, or `at` itself if a line starts there."""
    if at > 0 and text[at - 1] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def after_comments(text: str, end: int, indent: int) -> int:
    """Return the start of the line after a value and the comments that belong to it."""
    at = line_end(text, end)
    while (found := _COMMENT_LINE.match(text, at)) and len(found[1]) > indent:
        at = found.end()
    return at


def above_comments(text: str, at: int, indent: int) -> int:
    """Return the start of the comment lines above a line that are indented by at least `indent` columns."""
    while at > 0:
        line = text.rfind("\n", 0, at - 1) + 1
        words = text[line:at]
        if not words.strip().startswith("#") or len(words) - len(words.lstrip(" ")) < indent:
            return at
        at = line
    return at


_COMMENT_LINE = re.compile(r"( *)#[^\n]*(\n|\Z)")
# Quoted texts are matched first, so that a "#" inside them does not count as a comment.
_PIECES = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\'|(?:(?<=\s)|^)(?P<note>#[^\n]*)', re.MULTILINE)
