"""A big JSON object from a file, without its text in memory.

In: an open file. Out: the object. The entries of its `items` are read one after the other, so that what they have in
common can be shared before the next one is read.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import Any, BinaryIO

_CHUNK = 1 << 20  # bytes
_SPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


class _JsonText:
    """The part of the text that is in memory, and the current position in it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
        self._is_whole = False

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

    def value(self) -> Any:
        """Read a value. Raises: ValueError, RecursionError."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
            except ValueError:
                if self._is_whole:
                    raise
                self._more()
                continue
            if end < len(self._text) or self._is_whole:
                self._place = end
                return value
            self._more()  # a number may continue in what was not read yet


def load_json(file: BinaryIO, each: Callable[[Any], None]) -> dict[str, Any]:
    """Read the one object of a file; `each` is called with every entry of its list `items`.

    Raises: ValueError (also if it is not an object, and for bytes that are not UTF-8), RecursionError.
    """
    text = _JsonText(file)
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
            found[key] = _items(text, each) if key == "items" and text.peek() == "[" else text.value()
            sign = text.take(",}")
    if text.peek():
        raise ValueError("there is more after the object")
    return found


def _items(text: _JsonText, each: Callable[[Any], None]) -> list[Any]:
    text.take("[")
    found: list[Any] = []
    if text.peek() == "]":
        text.take("]")
        return found
    sign = ","
    while sign == ",":
        entry = text.value()
        each(entry)
        found.append(entry)
        sign = text.take(",]")
    return found
