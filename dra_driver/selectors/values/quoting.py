"""Texts quoted as the server's messages quote them.

In: any text. Out: the text in double quotes, escaped.

Source: Go's strconv.Quote.
"""

from __future__ import annotations

ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quote(text: str) -> str:
    """Quote a text and escape the characters that can't be printed."""
    return f'"{"".join([ESCAPES.get(char) or _character(char) for char in text])}"'


def _character(char: str) -> str:
    code = ord(char)
    if char.isprintable() and not 0xD800 <= code <= 0xDFFF:
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
