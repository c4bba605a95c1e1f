"""A big JSON object from a file, without its text in memory.

In: an open file. Out: the object. The entries of its `items` are read one after the other, so that the reader of the
entries (`Entries`) can share the parts that they have in common, or recognise an entry by its text.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, BinaryIO, Protocol

from dra_driver.documents.json_pattern import Opener, open_json

_CHUNK = 1 << 20  # bytes
_SPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


class Entries(Protocol):
    """Decides what is kept of the entries of `items`."""

    def take(self, text: str, place: int) -> tuple[Any, int] | None:
        """Return the entry that begins at a place in a text, and its end, if it need not be parsed; otherwise None.

        The text may end before the entry does.
        """

    def parsed(self, text: str, value: Any, opened: Opener) -> Any:
        """Return what to keep of an entry that was parsed from a text; `opened` takes the text apart."""


class _JsonText:
    """The part of the text that is in memory, and the current position in it."""

    def __init__(self, file: BinaryIO, decoder: json.JSONDecoder) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._raw_decode = decoder.raw_decode
        self._text = ""
        self._place = 0
        self._is_whole = False
        self._longest = 0

    def _more(self) -> None:
        """Read on. The unparsed text at least doubles each time, so that a long value is parsed only a few times."""
        if self._is_whole:
            raise ValueError("the text ends too early")
        size = max(_CHUNK, len(self._text) - self._place)
        raw = self._file.read(size)
        self._is_whole = not raw
        self._text = self._text[self._place :] + self._decode.decode(raw, final=self._is_whole)
        self._place = 0

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if self._is_whole:
                return ""
            self._more()

    def take(self, wanted: str) -> str:
        """Skip the next character, which must be one of `wanted`, and return it. Raises: ValueError."""
        found = self.peek()
        if not found or found not in wanted:
            raise ValueError(f"expected one of {wanted!r}")
        self._place += 1
        return found

    def entry(self, entries: Entries) -> Any:
        """Read an entry. Raises: ValueError, RecursionError."""
        self.peek()
        if len(self._text) - self._place < self._longest and not self._is_whole:
            self._more()  # an entry that is only half in memory can't be recognised
        found = entries.take(self._text, self._place)
        if found is not None:
            value, self._place = found
            return value
        value, text = self._parse()
        self._longest = min(max(self._longest, 2 * len(text)), _CHUNK)
        return entries.parsed(text, value, open_json)

    def value(self) -> Any:
        """Read a value. Raises: ValueError, RecursionError."""
        self.peek()
        return self._parse()[0]

    def _parse(self) -> tuple[Any, str]:
        """Return the value at the current position, and its text."""
        while True:
            try:
                value, end = self._raw_decode(self._text, self._place)
            except ValueError:
                if self._is_whole:
                    raise
                self._more()
                continue
            if end < len(self._text) or self._is_whole:
                text = self._text[self._place : end]
                self._place = end
                return value, text
            self._more()  # a number may continue in what was not read yet


def load_json(file: BinaryIO, entries: Entries, decoder: json.JSONDecoder = _DECODER) -> dict[str, Any]:
    """Read the one object of a file; `entries` reads those of its list `items`.

    Raises: ValueError (also if it is not an object, and for bytes that are not UTF-8), RecursionError.
    """
    text = _JsonText(file, decoder)
    text.take("{")
    found: dict[str, Any] = {}
    if text.peek() == "}":
        text.take("}")
    else:
        sign = ","
        while sign == ",":
            if text.peek() != '"':
                raise ValueError("a name is not a string")
            key = text.value()
            text.take(":")
            found[key] = _items(text, entries) if key == "items" and text.peek() == "[" else text.value()
            sign = text.take(",}")
    if text.peek():
        raise ValueError("there is more after the object")
    return found


def _items(text: _JsonText, entries: Entries) -> list[Any]:
    text.take("[")
    found: list[Any] = []
    if text.peek() == "]":
        text.take("]")
        return found
    sign = ","
    while sign == ",":
        found.append(text.entry(entries))
        sign = text.take(",]")
    return found
