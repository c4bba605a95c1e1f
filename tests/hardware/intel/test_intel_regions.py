"""Answers of the kernel drivers about memory regions, as bytes: no GPU is needed to read them."""

import ctypes
import struct
from pathlib import Path

import pytest

from dra_driver.hardware.intel.reading import device_memory, own_memory, read_i915, read_xe

GIB = 1 << 30
SYSTEM, DEVICE = 0, 1


def region(kind: int, size: int) -> bytes:
    return struct.pack("=HHIQ", kind, 0, 4096, size) + bytes(88 - 16)


def xe_answer(*regions: bytes) -> bytes:
    return struct.pack("=II", len(regions), 0) + b"".join(regions)


def i915_answer(*regions: bytes) -> bytes:
    return struct.pack("=IIII", len(regions), 0, 0, 0) + b"".join(regions)


class XeDriver:
    """The driver's side of the two calls."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def __call__(self, _fd: int, number: int, request: bytearray) -> int:
        assert (number, len(request)) == (0xC0286440, 40)
        extensions, query, size, address, *_ = struct.unpack("=QIIQQQ", request)
        assert (extensions, query) == (0, 1)
        if size == 0:
            struct.pack_into("=I", request, 12, len(self.answer))
        else:
            ctypes.memmove(address, self.answer, size)
        return 0


class I915Driver(XeDriver):
    def __call__(self, _fd: int, number: int, request: bytearray) -> int:
        assert (number, len(request)) == (0xC0106479, 16)
        items, _, place = struct.unpack("=IIQ", request)
        query, length, _, address = struct.unpack("=QiIQ", ctypes.string_at(place, 24))
        assert (items, query) == (1, 4)
        if length == 0:
            ctypes.memmove(place + 8, struct.pack("=i", len(self.answer)), 4)
        else:
            ctypes.memmove(address, self.answer, length)
        return 0


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ((region(SYSTEM, 64 * GIB), region(DEVICE, 12 * GIB)), 12 * GIB),
        ((region(SYSTEM, 64 * GIB), region(DEVICE, 64 * GIB), region(DEVICE, 64 * GIB)), 128 * GIB),
        ((region(SYSTEM, 64 * GIB),), 0),
        ((), 0),
    ],
)
def test_the_regions_of_device_memory_are_summed(regions: tuple[bytes, ...], expected: int) -> None:
    assert read_xe(0, XeDriver(xe_answer(*regions))) == expected
    assert read_i915(0, I915Driver(i915_answer(*regions))) == expected


@pytest.mark.parametrize("header", [8, 16])
@pytest.mark.parametrize("answer", [b"", b"\1\0\0", struct.pack("=IIII", 3, 0, 0, 0) + region(DEVICE, GIB)])
def test_an_answer_that_is_shorter_than_it_declares_gives_no_size(answer: bytes, header: int) -> None:
    assert device_memory(answer, header) is None


def test_an_answer_with_an_impossible_length_gives_no_size() -> None:
    class Long(XeDriver):
        def __call__(self, _fd: int, _number: int, request: bytearray) -> int:
            struct.pack_into("=I", request, 12, 1 << 31)
            return 0

    assert read_xe(0, Long(b"")) is None

    class Refusing(I915Driver):
        def __call__(self, _fd: int, _number: int, request: bytearray) -> int:
            ctypes.memmove(struct.unpack("=IIQ", request)[2] + 8, struct.pack("=i", -22), 4)
            return 0

    assert read_i915(0, Refusing(b"")) is None


@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_a_node_that_is_no_card_gives_no_size(tmp_path: Path, driver: str) -> None:
    (tmp_path / "card0").touch()
    assert own_memory(driver, str(tmp_path / "card0")) is None
    assert own_memory(driver, str(tmp_path / "card1")) is None
