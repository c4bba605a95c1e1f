"""Edits of a text, and what they need to know of it: where lines end, which comments stand in a piece of it.

In: a text. Out: `Edit`s, applied all at once; they never overlap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """`text[start:end]` becomes `new`. Edits at one place apply by `rank`."""

    start: int
    end: int
    rank: int
    new: str = field(compare=False)


def applied(text: str, edits: list[Edit]) -> str:
    """Apply edits, which don't overlap."""
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.new]
        at = max(at, edit.end)
    return "".join([*parts, text[at:]])


def is_same(old: Any, new: Any) -> bool:
    """Compare values as JSON does: types and the order of keys count."""
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(is_same(one, new[key]) for key, one in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_same, old, new))
    if isinstance(old, str) and isinstance(new, str):
        return str(old) == str(new)
    return type(old) is type(new) and bool(old == new)


def comments_in(text: str, start: int, end: int) -> list[str]:
    """Return the comments in a piece of text that is no comment itself."""
    return [found["note"].rstrip() for found in _PIECES.finditer(text, start, end) if found["note"]]


def line_end(text: str, at: int) -> int:
    """Return the start of the next line, or of this one where a value ended with its line."""
    if at > 0 and text[at - 1] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def after_comments(text: str, end: int, indent: int) -> int:
    """Find the line after a value, comments that belong to it passed over."""
    at = line_end(text, end)
    while (found := _COMMENT_LINE.match(text, at)) and len(found[1]) > indent:
        at = found.end()
    return at


def above_comments(text: str, at: int, indent: int) -> int:
    """Go up from the start of a line over the comments that stand above it, at least so many columns in."""
    while at > 0:
        line = text.rfind("\n", 0, at - 1) + 1
        words = text[line:at]
        if not words.strip().startswith("#") or len(words) - len(words.lstrip(" ")) < indent:
            return at
        at = line
    return at


_COMMENT_LINE = re.compile(r"( *)#[^\n]*(\n|\Z)")
# Quoted texts are passed over, so that a number sign in them is no comment.
_PIECES = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\'|(?:(?<=\s)|^)(?P<note>#[^\n]*)', re.MULTILINE)
