"""The memory regions of a GPU, according to its kernel driver.

In: the path of a card. Out: the size of its own memory in bytes. With both drivers a query takes two calls: the first
returns the length of the answer, the second the answer.

Source: Linux include/uapi/drm/xe_drm.h (DRM_XE_DEVICE_QUERY_MEM_REGIONS), i915_drm.h (DRM_I915_QUERY_MEMORY_REGIONS).
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable

Ioctl = Callable[[int, int, bytearray], int]

_XE_QUERY, _XE_REGIONS = 0xC0286440, 1
_I915_QUERY, _I915_REGIONS = 0xC0106479, 4
_XE_REQUEST = struct.Struct("=QIIQQQ")  # extensions, query, size, address, reserved twice
_I915_REQUEST = struct.Struct("=IIQ")  # items, flags, address of the items
_I915_ITEM = struct.Struct("=QiIQ")  # query, length, flags, address
_XE_HEADER, _I915_HEADER = 8, 16  # in both, the number of regions comes first
_REGION_BYTES, _DEVICE_MEMORY = 88, 1
_MAX_BYTES = 64 << 10


def own_memory(driver: str, path: str) -> int | None:
    """Return the size of a GPU's own memory in bytes, 0 if it has none, or None if its driver does not report it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        from fcntl import ioctl  # noqa: PLC0415 - on nodes with these GPUs alone

        return read_xe(fd, ioctl) if driver == "xe" else read_i915(fd, ioctl)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_xe(fd: int, ioctl: Ioctl) -> int | None:
    """Return the size that the driver xe reports. Raises: OSError."""
    request = bytearray(_XE_REQUEST.pack(0, _XE_REGIONS, 0, 0, 0, 0))
    ioctl(fd, _XE_QUERY, request)
    size = _XE_REQUEST.unpack(request)[2]
    if not _XE_HEADER <= size <= _MAX_BYTES:
        return None
    answer = array("B", bytes(size))
    ioctl(fd, _XE_QUERY, bytearray(_XE_REQUEST.pack(0, _XE_REGIONS, size, answer.buffer_info()[0], 0, 0)))
    return device_memory(answer.tobytes(), _XE_HEADER)


def read_i915(fd: int, ioctl: Ioctl) -> int | None:
    """Return the size that the driver i915 reports. Raises: OSError."""
    item = array("B", _I915_ITEM.pack(_I915_REGIONS, 0, 0, 0))
    request = _I915_REQUEST.pack(1, 0, item.buffer_info()[0])
    ioctl(fd, _I915_QUERY, bytearray(request))
    size = _I915_ITEM.unpack(item.tobytes())[1]
    if not _I915_HEADER <= size <= _MAX_BYTES:  # a negative length is the driver's error number
        return None
    answer = array("B", bytes(size))
    item[:] = array("B", _I915_ITEM.pack(_I915_REGIONS, size, 0, answer.buffer_info()[0]))
    ioctl(fd, _I915_QUERY, bytearray(request))
    return device_memory(answer.tobytes(), _I915_HEADER)


def device_memory(answer: bytes, header: int) -> int | None:
    """Return the sum of the regions of device memory in an answer, or None for one that is cut short.

    A region starts with class and instance (16 bits each), another 32 bits, and its size in bytes (64 bits).
    """
    if len(answer) < header:
        return None
    (count,) = struct.unpack_from("=I", answer)
    if len(answer) < header + count * _REGION_BYTES:
        return None
    regions = (struct.unpack_from("=HHIQ", answer, header + index * _REGION_BYTES) for index in range(count))
    return sum(int(size) for kind, _, _, size in regions if kind == _DEVICE_MEMORY)
