"""RE2 for the playground in a browser, by a port in JavaScript, with the part of google-re2's interface that is used.

In: patterns and texts. Out: what RE2 answers. The worker registers the port as the module `re2_port`. A few patterns on
which the port and RE2 differ are not judged: who asks about them is told so.

Source: google-re2's module `re2`; syntax and messages of RE2 (github.com/google/re2/wiki/Syntax).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import re2_port

from dra_driver.base.errors import InputError

_MAX_LENGTH = 1_000  # characters; RE2 refuses what needs too much memory, and the port has no such limit
_MAX_COPIES = 100  # of a part that is repeated a number of times, for the same reason
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_BETWEEN_BYTES = re.compile(r"(?<!\\)(?:\\\\)*\\B")  # RE2 also finds the places between the bytes of one character
_LOOK_BEHIND = re.compile(r"invalid named capture: `(\(\?<[=!])")
_BYTE = "invalid escape sequence: `\\C`"  # who compiles patterns refuses it, unless it finds it quoted
_DUPLICATE = "duplicate capture group name"  # RE2 accepts a name that is written in both of its forms


class error(Exception):  # noqa: N801  (the name that google-re2 gives it)
    """The pattern is not RE2; the message is that of RE2."""


class Options:
    """Options of RE2, of which only one is ever set, and it has no effect here."""

    log_errors = True


class Match:
    """A match: its text and its place."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text, self._start, self._end = text, start, end

    def group(self) -> str:
        """Return the text that matched."""
        return self._text

    def start(self) -> int:
        """Return where the match begins."""
        return self._start

    def end(self) -> int:
        """Return where the match ends."""
        return self._end


class Program:
    """A compiled pattern. The port gives a match as its text, start and end."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def search(self, text: str) -> Match | None:
        """Return the first match, or None."""
        found = self._program.next(text)
        return None if found is None else Match(*found)

    def finditer(self, text: str) -> Iterator[Match]:
        """Yield all matches in order."""
        for found in self._program.all(text):
            yield Match(*found)


def compile(pattern: str, _options: Options) -> Program:  # noqa: A001  (the name that google-re2 gives it)
    """Compile a pattern.

    Raises:
        error: The pattern is not RE2.
        InputError: The port may judge it in another way than RE2.
    """
    pattern.encode()  # raises UnicodeEncodeError, as google-re2 does
    program, message = re2_port.compile(pattern)
    if message:
        raise error(_words(message, pattern))
    if len(pattern) > _MAX_LENGTH or _copies(pattern) > _MAX_COPIES or _BETWEEN_BYTES.search(pattern):
        raise _not_here(pattern)
    return Program(program)


def _copies(pattern: str) -> int:
    """Return how often a part is repeated at most, if all counted repetitions stand inside each other."""
    product = 1
    for least, most in _COUNT.findall(pattern):
        product *= max(int(most or 0), int(least), 1)
    return product


def _words(message: str, pattern: str) -> str:
    """Return RE2's words for a message of the port."""
    text = message.removeprefix("error parsing regexp: ")
    if text.startswith(_DUPLICATE) or text == _BYTE:
        raise _not_here(pattern)
    if look_behind := _LOOK_BEHIND.match(text):
        text = f"invalid perl operator: `{look_behind[1]}`"
    reason, _, piece = text.partition(": ")
    return f"{reason}: {piece.removeprefix('`').removesuffix('`')}"


def _not_here(pattern: str) -> InputError:
    shown = pattern if len(pattern) <= 60 else f"{pattern[:60]}…"
    return InputError(
        "pattern", f"the pattern {shown!r} can't be judged in a browser", hint="dra-driver cel test judges it"
    )
