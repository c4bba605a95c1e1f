"""The meaning of literal tokens.

In: the text of one token. Out: a run-time value. It does not find tokens.

Source: the CEL language definition (escapes, number ranges) as cel-go's parser applies it.
"""

from __future__ import annotations

import math
import re

from dra_driver.selectors.values.values import Uint

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_MAX_DIGITS = 30  # longer digit strings are read only after their leading zeros are removed
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES = re.compile(
    r"\\(?:[xX](?P<byte>[0-9a-fA-F]{2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<char>.))",
    re.DOTALL,
)


class BadLiteral(Exception):
    """The token has the right shape but no valid value."""


def read_int(text: str, *, negative: bool) -> int:
    """Read an int literal without its sign."""
    value = _magnitude(text)
    value = -value if negative else value
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise BadLiteral("invalid int literal")
    return value


def read_uint(text: str) -> Uint:
    """Read a uint literal with its suffix."""
    value = _magnitude(text[:-1])
    if value > _UINT64_MAX:
        raise BadLiteral("invalid uint literal")
    return Uint(value)


def read_double(text: str, *, negative: bool) -> float:
    """Read a double literal."""
    value = float(text)
    if math.isinf(value):
        raise BadLiteral("invalid double literal")
    return -value if negative else value


def read_string(token: str) -> str:
    """Read a string literal with its quotes and prefix."""
    body, raw = _body(token)
    if raw or "\\" not in body:
        return body
    return _ESCAPES.sub(_character, body)


def read_bytes(token: str) -> bytes:
    """Read a bytes literal with its prefix; text that is not escaped counts as UTF-8."""
    body, raw = _body(token[1:])
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    parts, last = [], 0
    for found in _ESCAPES.finditer(body):
        parts.append(body[last : found.start()].encode("utf-8", "surrogatepass"))
        parts.append(_byte(found))
        last = found.end()
    parts.append(body[last:].encode("utf-8", "surrogatepass"))
    return b"".join(parts)


def _magnitude(text: str) -> int:
    hexadecimal = text.startswith("0x")
    digits = (text[2:] if hexadecimal else text).lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS:
        return _UINT64_MAX + 1
    return int(digits, 16 if hexadecimal else 10)


def _body(token: str) -> tuple[str, bool]:
    raw = token[0] in "rR"
    token = token[1:] if raw else token
    width = 3 if len(token) >= 6 and token[:3] in {'"""', "'''"} else 1
    body = token[width:-width]
    if "\r" in body:
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    return body, raw


def _character(found: re.Match[str]) -> str:
    if found["char"] is not None:
        return _SIMPLE.get(found["char"], found["char"])
    if found["octal"]:
        return chr(int(found["octal"], 8))
    code = int(found["byte"] or found["short"] or found["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise BadLiteral("invalid unicode code point")
    return chr(code)


def _byte(found: re.Match[str]) -> bytes:
    if found["char"] is not None:
        return _SIMPLE.get(found["char"], found["char"]).encode()
    if found["octal"]:
        return bytes([int(found["octal"], 8)])
    if found["byte"]:
        return bytes([int(found["byte"], 16)])
    raise BadLiteral("unable to unescape string")
