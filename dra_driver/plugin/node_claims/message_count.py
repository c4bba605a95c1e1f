"""Message count: how many fields a message has that become objects when it is decoded, counted before it is decoded.

In: an encoded message and its type. Out: the number of its texts, bytes and messages at all depths. A field of two
bytes becomes a hundred bytes of memory, so the length alone is no limit. Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_VARINT_BITS = 64


def fields_in(text: bytes, kind: Any, at_most: int) -> int:
    """Return how many fields with a length an encoded message of the type `kind`, a descriptor, has.

    Counting ends soon after `at_most`. Raises: DecodeError.
    """
    return _count(text, (0, len(text)), kind, at_most)


def _count(text: bytes, within: tuple[int, int], kind: Any, at_most: int) -> int:
    at, end = within
    count = 0
    while at < end and count <= at_most:
        key, at = _varint(text, at, end)
        if key & 7 == _VARINT:
            _, at = _varint(text, at, end)
        elif key & 7 == _LENGTH:
            size, at = _varint(text, at, end)
            if size > end - at:
                raise DecodeError("a field is longer than its message")
            field = kind.fields_by_number.get(key >> 3)
            count += 1
            if field is not None and field.message_type is not None:
                count += _count(text, (at, at + size), field.message_type, at_most - count)
            at += size
        elif key & 7 in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if key & 7 == _EIGHT_BYTES else 4
        else:
            raise DecodeError("a field has an unknown type")
    return count


def _varint(text: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _VARINT_BITS:
        byte = text[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number does not end")
