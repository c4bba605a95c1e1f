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

from dra_driver.selectors.values.equality import MAX_TEXT, NO_SUCH_OVERLOAD, checked_text
from dra_driver.selectors.values.messages import ESCAPES
from dra_driver.selectors.values.values import (
    COPIED_AT_ONCE,
    COST_EXCEEDED,
    CelAbort,
    CelError,
    Concat,
    count_work,
    unfold,
)

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

    for piece in _PIECE.finditer(pattern):
        if piece["large"]:
            raise BadPattern(f"error parsing regexp: invalid repeat count: `{piece['large']}`")
        if _GO_REFUSES.search(piece[0]) and not piece[0].startswith("\\Q"):
            raise BadPattern(r"error parsing regexp: invalid escape sequence: `\C`")
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


# String functions: charAt, indexOf, substring, split, replace, join, quote and the rest.

_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501  (Unicode's White_Space property)
_QUOTED = str.maketrans(ESCAPES)


def _out_of_range(index: int) -> CelError:
    return CelError(f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(part, offset)


def _last_index_of(text: str, part: str) -> int:
    if not part:
        return len(text)
    if len(text.encode("utf-8", "surrogatepass")) < len(part.encode("utf-8", "surrogatepass")):
        return -1
    return _last_index_from(text, part, len(text) - 1)


def _last_index_from(text: str, part: str, offset: int) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _clamped(search: Callable[[str, str, int], int]) -> Callable[[str, str, int], int]:
    """Make a search as it is since 1.37: an empty part is found at the end of the text at the latest."""

    def search_clamped(text: str, part: str, offset: int) -> int:
        if offset < 0:
            raise _out_of_range(offset)
        return search(text, part, offset) if part else min(offset, len(text))

    return search_clamped


def _substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_to(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    pieces = text.count(old) if count < 0 else min(text.count(old), count)
    if len(text) + pieces * max(0, len(new) - len(old)) > MAX_TEXT:
        raise CelAbort(COST_EXCEEDED)
    return text.replace(old, new, max(count, -1))


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if 0 < count < len(text):
        return [*text[: count - 1], text[count - 1 :]]
    return list(text)


def _join(parts: Any, *rest: str) -> str:
    elements = unfold(parts)
    if elements and type(elements[0]) is not str:
        names = ", ".join(["list", "string"][: 2 if rest else 1])
        raise CelError(f"{NO_SUCH_OVERLOAD}: join({names})")
    separator = rest[0] if rest else ""
    count_work(len(elements) // COPIED_AT_ONCE)
    size = 0
    for element in elements:
        if type(element) is not str:
            raise CelError(f"join: invalid input: {element}")
        size += len(element) + len(separator)
    if size > MAX_TEXT:
        raise CelAbort(COST_EXCEEDED)
    return separator.join(elements)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


STRINGS: dict[str, dict[tuple[type, ...], Any]] = {
    "charAt": {(str, int): _char_at},
    "contains": {(str, str): lambda text, part: part in text},
    "startsWith": {(str, str): str.startswith},
    "endsWith": {(str, str): str.endswith},
    "indexOf": {(str, str): _index_of, (str, str, int): _index_of},
    "lastIndexOf": {(str, str): _last_index_of, (str, str, int): _last_index_from},
    "indexOf since 1.37": {(str, str): _index_of, (str, str, int): _clamped(_index_of)},
    "lastIndexOf since 1.37": {(str, str): _last_index_of, (str, str, int): _clamped(_last_index_from)},
    "lowerAscii": {(str,): lambda text: text.lower() if text.isascii() else text.translate(_ASCII_LOWER)},
    "upperAscii": {(str,): lambda text: text.upper() if text.isascii() else text.translate(_ASCII_UPPER)},
    "replace": {(str, str, str): _replace, (str, str, str, int): _replace},
    "split": {(str, str): _split, (str, str, int): _split},
    "substring": {(str, int): _substring, (str, int, int): _substring_to},
    "trim": {(str,): lambda text: text.strip(_SPACE)},
    "join": {(kind, *separator): _join for kind in (list, Concat) for separator in ((), (str,))},
    "strings.quote": {(str,): lambda text: checked_text(_quote(text))},
}
