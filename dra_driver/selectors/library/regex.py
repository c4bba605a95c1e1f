"""Regular expressions: matches, find, findAll.

In: texts and patterns. Out: bools, strings, lists, or a `CelError`. Patterns are RE2, so matching takes time linear in
the text. Python's own `re` is never used here: it accepts look-arounds, which the server refuses.

Source: Go's regexp package, whose error texts are rebuilt from those of the C++ library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dra_driver.selectors.values.values import CelError

_MAX_REMEMBERED = 1024  # texts whose answers one pattern remembers
_LONGEST_REMEMBERED = 256
_GO_REFUSES = re.compile(r"(?<!\\)(?:\\\\)*\\(?:C)")
# Go reads a count of any length, and refuses a large one; RE2 takes a count of ten digits for plain text.
_COUNT = r"(?:0|[1-9][0-9]*+)"
_LARGE = r"[1-9][0-9]{8,}+"
_PIECE = re.compile(
    r"(?s)\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?>(?:\\.|\[:\^?\w+:\]|[^\]\\])*)\]"
    rf"|(?P<large>\{{(?:{_LARGE}(?:,{_COUNT}?)?|{_COUNT},{_LARGE})\}})"
)
_WORDS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "unexpected )": "unexpected )",
    "bad repetition operator": "invalid nested repetition operator",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


class BadPattern(Exception):
    """The pattern is not RE2. The message is Go's own."""


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Pattern:
    """Compile an RE2 pattern; the most recently used patterns are kept.

    Raises:
        BadPattern: The server refuses the pattern.
    """
    return Pattern(pattern)


class Pattern:
    """A compiled pattern that remembers its answers for short texts."""

    __slots__ = ("_found", "_matched", "_program")

    def __init__(self, pattern: str) -> None:
        self._program = _compile(pattern)
        self._matched: dict[str, bool] = {}
        self._found: dict[str, str] = {}

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text."""
        known = self._matched.get(text)
        if known is None:
            known = self._program.search(text) is not None
            if len(text) <= _LONGEST_REMEMBERED:
                if len(self._matched) >= _MAX_REMEMBERED:
                    self._matched.clear()
                self._matched[text] = known
        return known

    def find(self, text: str) -> str:
        """Return the first match, or an empty string."""
        known = self._found.get(text)
        if known is None:
            found = self._program.search(text)
            known = found.group() if found is not None else ""
            if len(text) <= _LONGEST_REMEMBERED:
                if len(self._found) >= _MAX_REMEMBERED:
                    self._found.clear()
                self._found[text] = known
        return known

    def find_all(self, text: str, count: int = -1) -> list[str]:
        """Return the matches in order, at most `count` of them unless `count` is negative."""
        found: list[str] = []
        last = -1
        if count == 0:
            return found
        for one in self._program.finditer(text):
            if one.start() == one.end() == last:
                continue  # an empty match that touches the match before it
            last = one.end()
            found.append(one.group())
            if len(found) == count:
                break
        return found


def _compile(pattern: str) -> Any:
    import re2  # noqa: PLC0415  (a native library; selectors without patterns never need it)

    if _GO_REFUSES.search(pattern) and "\\Q" not in pattern:
        raise BadPattern(r"error parsing regexp: invalid escape sequence: `\C`")
    large = next(filter(None, (piece["large"] for piece in _PIECE.finditer(pattern))), None)
    if large is not None:
        raise BadPattern(f"error parsing regexp: invalid repeat count: `{large}`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise BadPattern(_go_text(pattern, error)) from error


def _go_text(pattern: str, error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    reason, _, piece = text.partition(": ")
    if reason == "missing )" and not piece:
        piece = pattern
    if reason == "missing )":
        piece = pattern
    return f"error parsing regexp: {_WORDS.get(reason, reason)}: `{piece}`"


def _run(use: Callable[..., Any], prefix: str) -> Callable[..., Any]:
    def call(text: str, pattern: str, *rest: int) -> Any:
        try:
            compiled = compile_pattern(pattern)
        except BadPattern as bad:
            raise CelError(f"{prefix}{bad}") from bad
        return use(compiled, text, *rest)

    return call


REGEX: dict[str, dict[tuple[type, ...], Any]] = {
    "matches": {(str, str): _run(Pattern.matches, "")},
    "find": {(str, str): _run(Pattern.find, "Illegal regex: ")},
    "findAll": {
        (str, str): _run(Pattern.find_all, "Illegal regex: "),
        (str, str, int): _run(Pattern.find_all, "Illegal regex: "),
    },
}
PATTERN_FUNCTIONS = frozenset(REGEX)
