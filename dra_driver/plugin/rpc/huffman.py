"""Huffman: decodes the compressed texts of header fields.

The code is canonical: the codes of one length are consecutive numbers, in the order of their characters, so the lengths
alone define it.
Source: RFC 7541, section 5.2 and appendix B.
"""

from __future__ import annotations

# The length in bits of the code of each byte, sixteen to a row. Number 256 is the end code, which no text may contain.
_LENGTHS = """
    13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28
    28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
     6 10 10 12 13  6  8 11 10 10  8 11  8  6  6  6
     5  5  5  6  6  6  6  6  6  6  7  8 15  6 12 10
    13  6  7  7  7  7  7  7  7  7  7  7  7  7  7  7
     7  7  7  7  7  7  7  7  8  7  8 13 19 13 14  6
    15  5  6  5  6  5  6  6  6  5  7  7  6  6  6  5
     6  7  6  5  5  6  7  7  7  7  7 15 11 14 13 28
    20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23
    24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
    22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23
    21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
    26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25
    19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
    20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23
    26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
    30"""
_END = 256
_NO_PADDING = "a compressed header field does not end with padding"


def _codes() -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return, for each length, the first code, and the characters of the codes from that one on."""
    by_length: dict[int, list[int]] = {}
    for character, length in enumerate(map(int, _LENGTHS.split())):
        by_length.setdefault(length, []).append(character)
    codes, code, last = [], 0, 0
    for length, characters in sorted(by_length.items()):
        code <<= length - last
        codes.append((length, code, tuple(characters)))
        code, last = code + len(characters), length
    return tuple(codes)


def _by_byte() -> tuple[tuple[int, int], ...]:
    """Return, for each byte, the length and the character of the code that it begins with; (0, 0) for a long code."""
    found = [(0, 0)] * 256
    for length, first, characters in _CODES:
        if length <= _BYTE_BITS:
            for code, character in enumerate(characters, first):
                begin, rest = code << _BYTE_BITS - length, 1 << _BYTE_BITS - length
                found[begin : begin + rest] = [(length, character)] * rest
    return tuple(found)


_BYTE_BITS = 8
_AHEAD_BITS = 32  # more than the longest code has
_PIECE_BYTES = 64  # taken of a text at a time: a look at a few bits of a long number copies all the others
_AHEAD_MASK = (1 << _AHEAD_BITS) - 1
_PADDING_BITS = 7
_CODES = _codes()
_BY_BYTE = _by_byte()
_LONG_CODES = tuple(code for code in _CODES if code[0] > _BYTE_BITS)


def decode(data: bytes) -> bytes:
    """Return the text that was compressed. Raises: ValueError."""
    padded, text = data + b"\xff" * (_AHEAD_BITS // 8), bytearray()  # with more padding than is needed
    left = 8 * len(data)  # bits of the text that are still to be read
    bits = held = place = 0  # the last `held` bits of `bits` come next; then comes what is at this place
    while left:
        if held < _AHEAD_BITS:
            piece = padded[place : place + _PIECE_BYTES]
            bits = (bits & (1 << held) - 1) << 8 * len(piece) | int.from_bytes(piece)
            held, place = held + 8 * len(piece), place + _PIECE_BYTES
        length, character = _BY_BYTE[bits >> held - _BYTE_BITS & 0xFF]
        if not length:
            if left <= _PADDING_BITS:
                break
            length, character = _long(bits >> held - _AHEAD_BITS & _AHEAD_MASK, left)
        if length > left:
            raise ValueError(_NO_PADDING)
        text.append(character)
        left, held = left - length, held - length
    return bytes(text)


def _long(ahead: int, left: int) -> tuple[int, int]:
    """Return the length and the character of the code, longer than a byte, with which the next bits begin.

    `ahead` has `_AHEAD_BITS` bits, of which `left` belong to the text, if there are so many.
    """
    for length, first, characters in _LONG_CODES:
        if length > left:
            raise ValueError(_NO_PADDING)
        place = (ahead >> _AHEAD_BITS - length) - first
        if place < len(characters):
            break
    if characters[place] == _END:
        raise ValueError("a compressed header field contains the end code")
    return length, characters[place]
