"""Decode the bytes of a review into plain values, with limits on depth and number.

Pure. In: a body of bounded length. Out: what json makes of it; a part that is nested too deeply is replaced by a text
(no valid config nests like that, so the text is refused in its place). Nothing that an API server passes on is refused
for how it is written: numbers of any length, halves of surrogate pairs, duplicate names, NaN.
Source: Kubernetes, sigs.k8s.io/json (10,000 levels; the last of equal names counts); RawExtension keeps bytes as they
are.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dra_driver.model.errors import InputError

MAX_VALUES = 200_000  # a valid claim has some tens of thousands
MAX_LEVELS = 100
TOO_DEEP = "(nested too deeply)"
_MAX_DIGITS = 4096  # Python refuses to convert longer integers; quantities end there too
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([0-9A-Za-z-]{1,256})"')
_UID_WITHIN = 2048  # in bytes; API servers write the UID at the beginning
_OPENING, _CLOSING = b"[{", b"]}"


class TooManyValuesError(InputError):
    """The review holds more values than any valid object. `uid` is the review's own, if it could be found."""

    def __init__(self, uid: str) -> None:
        super().__init__("review", f"the review holds more than {MAX_VALUES} values")
        self.uid = uid


def decode(body: bytes) -> Any:
    """Decode a body. Raises: InputError("input.review"); TooManyValuesError."""
    if _marks(body, b"[", b"{") > MAX_LEVELS or _marks(body, b",", b"[", b"{") > MAX_VALUES:
        body = _flattened(body)
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise InputError("review", f"not an AdmissionReview: {error}") from error


def _marks(body: bytes, *marks: bytes) -> int:
    """Count some characters wherever they occur, in texts too: that is fast, and never an underestimate."""
    return sum(map(body.count, marks))


def _flattened(body: bytes) -> bytes:
    """Count the actual values, and cut out what is nested too deeply."""
    pieces: list[bytes] = []
    depth = values = 0
    kept_to = 0  # up to where the body has been copied to `pieces`
    cut_at = -1  # where the part that is too deep began; -1 outside such a part
    for token in _TOKENS.finditer(body):
        start = token.start()
        mark = body[start : start + 1]
        if mark == b'"':
            continue
        if mark in _CLOSING:
            if depth > MAX_LEVELS and depth - 1 == MAX_LEVELS and cut_at >= 0:
                pieces += (body[kept_to:cut_at], b'"', TOO_DEEP.encode(), b'"')
                kept_to, cut_at = token.end(), -1
            depth -= 1
            continue
        values += 1
        if values > MAX_VALUES:
            raise TooManyValuesError(_uid_of(body))
        if mark in _OPENING:
            depth += 1
            if depth == MAX_LEVELS + 1:
                cut_at = start
    if cut_at >= 0:
        raise InputError("review", "not an AdmissionReview: it is incomplete")
    return b"".join(pieces) + body[kept_to:] if pieces else body


def _uid_of(body: bytes) -> str:
    found = _UID.search(body[:_UID_WITHIN])
    return found[1].decode() if found else ""


def _int(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


_DECODER = json.JSONDecoder(parse_int=_int)
