"""The dynamic loader's cache: bytes of /etc/ld.so.cache come in, library paths go out. A broken cache holds none.

Source: glibc, sysdeps/generic/dl-cache.h: header "glibc-ld.so.cache1.1", entries of 24 bytes, offsets from the header.
"""

from __future__ import annotations

import struct

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sII20x")  # magic, number of entries, bytes of strings; then flags and reserved words
_ENTRY = struct.Struct("=iIIIQ")  # flags, offset of the name, offset of the path, OS version, hardware capabilities
_TYPE_MASK, _TYPE_LIBC6 = 0x00FF, 0x0003
_64_BIT = (0x0300, 0x0A00)  # FLAG_X8664_LIB64, FLAG_AARCH64_LIB64


def library_paths(cache: bytes, name: str) -> tuple[str, ...]:
    """Return the paths of the 64-bit libraries that the loader would use for `name`, best first."""
    start = cache.find(_MAGIC)  # a cache in the older format may precede it
    if start < 0 or len(cache) < start + _HEADER.size:
        return ()
    _, count, _ = _HEADER.unpack_from(cache, start)
    first = start + _HEADER.size
    count = min(count, (len(cache) - first) // _ENTRY.size)
    paths = []
    for index in range(count):
        flags, key, value, _, _ = _ENTRY.unpack_from(cache, first + index * _ENTRY.size)
        if flags & _TYPE_MASK != _TYPE_LIBC6 or flags & ~_TYPE_MASK not in _64_BIT:
            continue
        if _text(cache, start + key) == name:
            paths.append(_text(cache, start + value))
    return tuple(path for path in paths if path.startswith("/"))


def _text(cache: bytes, offset: int) -> str:
    end = cache.find(b"\0", offset)
    return cache[offset:end].decode(errors="replace") if 0 <= offset < len(cache) and end >= 0 else ""
