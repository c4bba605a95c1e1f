"""Header fields. In: the peer's HPACK blocks. Out: names and values.

The peer may refer to fields that it sent before, so the blocks of a connection have to be read in order. The
fields that we send are written in full each time, and need no state.
Source: RFC 7541.
"""

from __future__ import annotations

from itertools import chain

from dra_driver.plugin.rpc import huffman

Field = tuple[bytes, bytes]

TABLE_BYTES = 4096  # the size of the dynamic table, which is the default of HTTP/2
_ENTRY_BYTES = 32  # what each field of the table counts beside its name and value
_MAX_BYTES = 16 * 1024  # of a decoded block, at most
_BLOCKS_KEPT, _BLOCK_KEPT_BYTES = 16, 256  # decoded blocks are kept, for clients that send the same ones again
_MAX_SHIFT = 28
_METHODS = b"|:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https"
_STATUS = b"|:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500"
_NAMES = (
    b"|accept-charset|accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin"
    b"|age|allow|authorization|cache-control|content-disposition|content-encoding|content-language|content-length"
    b"|content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match"
    b"|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards"
    b"|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie"
    b"|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)


def _field(text: bytes) -> Field:
    name, _, value = text.partition(b" ")
    return name, value


_STATIC: tuple[Field, ...] = tuple(map(_field, (_METHODS + _STATUS + _NAMES).split(b"|")))  # numbered from 1


class FieldDecoder:
    """Reads the blocks of one connection, in order."""

    def __init__(self) -> None:
        self._table = list(_STATIC)  # and after it the dynamic table, with the newest field first
        self._size, self._maximum = 0, TABLE_BYTES
        self._known: dict[bytes, list[Field]] = {}  # decoded blocks, valid until `_table` changes

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block. Raises: ValueError, after which the connection can't be used any more.

        The caller must not change the list, because it is kept. A kubelet's calls have a new time limit each, and so
        blocks of their own; those of other clients often recur.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        fields, is_changed = self._decoded(block)
        if is_changed or len(self._known) == _BLOCKS_KEPT:
            self._known.clear()
        if not is_changed and len(block) <= _BLOCK_KEPT_BYTES:
            self._known[block] = fields
        return fields

    def _decoded(self, block: bytes) -> tuple[list[Field], bool]:
        """Return the fields of a block, and whether it changed the dynamic table. Raises: ValueError."""
        fields: list[Field] = []
        is_changed = False
        place, size, table = 0, len(block), self._table
        try:
            while place < size:
                first = block[place]
                if 0x80 < first < 0xFF:  # most fields: a number of one byte
                    fields.append(table[first & 0x7F])
                    place += 1
                elif first & 0x80:
                    number, place = _integer(block, place, 7)
                    fields.append(self._numbered(number))
                elif first & 0xE0 == 0x20:
                    maximum, place = _integer(block, place, 5)
                    is_changed = True
                    self._resize(maximum)
                else:
                    is_kept = bool(first & 0x40)
                    field, place = self._literal(block, place, 6 if is_kept else 4)
                    fields.append(field)
                    if is_kept:
                        is_changed = True
                        self._keep(field)
        except IndexError:
            raise ValueError("header fields end too early, or refer to a field that does not exist") from None
        if sum(map(len, chain.from_iterable(fields))) + _ENTRY_BYTES * len(fields) > _MAX_BYTES:
            raise ValueError("the header fields are too long")
        return fields, is_changed

    def _literal(self, block: bytes, place: int, bits: int) -> tuple[Field, int]:
        number, place = _integer(block, place, bits)
        if number:
            name = self._numbered(number)[0]
        else:
            name, place = _text(block, place)
        value, place = _text(block, place)
        return (name, value), place

    def _numbered(self, number: int) -> Field:
        """Return the field with a number of the static or the dynamic table. Raises: IndexError."""
        if number == 0:
            raise IndexError
        return self._table[number]

    def _keep(self, field: Field) -> None:
        self._table.insert(len(_STATIC), field)
        self._size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._drop()

    def _resize(self, maximum: int) -> None:
        if maximum > TABLE_BYTES:
            raise ValueError("the dynamic table of header fields would be larger than is allowed")
        self._maximum = maximum
        self._drop()

    def _drop(self) -> None:
        while self._size > self._maximum:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field in full, uncompressed and not for the dynamic table; name and value may have 16 KiB each."""
    return b"\0" + _sized(name) + _sized(value)


def _sized(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    rest, size = length - 0x7F, bytearray(b"\x7f")
    while rest >= 0x80:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    size.append(rest)
    return bytes(size) + text


def _integer(block: bytes, place: int, bits: int) -> tuple[int, int]:
    """Return a number of which the first byte has `bits` bits, and the position after it. Raises: ValueError."""
    maximum = (1 << bits) - 1
    number = block[place] & maximum
    place += 1
    if number < maximum:
        return number, place
    for shift in range(0, _MAX_SHIFT, 7):
        byte = block[place]
        place += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number in the header fields is too large")


def _text(block: bytes, place: int) -> tuple[bytes, int]:
    length, begin = _integer(block, place, 7)
    end = begin + length
    if end > len(block):
        raise IndexError
    text = block[begin:end]
    return (huffman.decode(text) if block[place] & 0x80 else text), end
