"""NVIDIA's libcuda.so.1 by ctypes: the few calls of the driver API that a test of a device needs.

Source: the CUDA driver API reference (cuda.h of CUDA 12): names, versions and error codes.
"""

from __future__ import annotations

import ctypes
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any


class NoLibrary(Exception):
    """No candidate can be loaded, or the library lacks a function."""


class CudaFault(Exception):
    """A call returned an error, that is, a code other than CUDA_SUCCESS."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.call, self.code = call, code


class Cuda:
    """The library, with one context on one device. Every method raises CudaFault.

    Args:
        candidates: paths of libcuda.so.1, the best first.
        helpers: libraries that libcuda loads by name later. They are loaded first, because the loader then finds them
            although they are in none of the folders that it searches.
    """

    def __init__(self, candidates: Iterable[str], helpers: Iterable[str]) -> None:
        for helper in helpers:
            with suppress(OSError):
                ctypes.CDLL(helper, mode=ctypes.RTLD_GLOBAL)
        self._library = _loaded(candidates)
        self._device = ctypes.c_int()
        self._context = ctypes.c_void_p()

    @property
    def has_context(self) -> bool:
        """Return whether there is a context now; an error is then attributed to the device."""
        return bool(self._context.value)

    def open(self) -> str:
        """Initialise the library and choose its only device.

        Return the PCI address as the library writes it, or "" if the library does not report it.
        """
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        address = ctypes.create_string_buffer(32)
        if hasattr(self._library, "cuDeviceGetPCIBusId"):
            self._call("cuDeviceGetPCIBusId", address, ctypes.c_int(32), self._device)
        return address.value.decode("ascii", "replace")

    def make_context(self) -> None:
        """Make the context in which everything else happens."""
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)

    def release_context(self) -> None:
        """End the context."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self._context = ctypes.c_void_p()

    def memory(self) -> tuple[int, int]:
        """Return how many bytes of the device's memory are free, and how many there are."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes on the device, and return their address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def allocate_host(self, size: int) -> int:
        """Allocate `size` bytes of page-locked memory of the machine, and return their address."""
        address = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value or 0

    def free(self, address: int) -> None:
        """Release memory of the device."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, address: int, word: int, words: int) -> None:
        """Write one 32-bit word `words` times."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint(word), ctypes.c_size_t(words))

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        """Return bytes from the device."""
        buffer = ctypes.create_string_buffer(size)
        self.read_into(buffer, address)
        return buffer.raw

    def read_into(self, buffer: ctypes.Array[ctypes.c_char], address: int) -> None:
        """Copy from the device what fills the buffer."""
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(len(buffer)))

    def copy_in(self, address: int, host: int, size: int) -> None:
        """Copy page-locked memory to the device."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(size))

    def copy_out(self, host: int, address: int, size: int) -> None:
        """Copy memory of the device to page-locked memory."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def load(self, ptx: bytes) -> ctypes.c_void_p:
        """Compile PTX for the device, and return the module."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
        return module

    def run(self, module: ctypes.c_void_p, name: bytes, blocks: int, arguments: Sequence[Any]) -> None:
        """Run a kernel with 256 threads in each block, and wait for its end. `arguments` are values of ctypes."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name))
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = (*(ctypes.c_uint(number) for number in (blocks, 1, 1, 256, 1, 1, 0)), ctypes.c_void_p())
        self._call("cuLaunchKernel", function, *sizes, pointers, ctypes.c_void_p())
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] | None = getattr(self._library, name, None)
        if function is None:
            raise NoLibrary(f"the library has no {name}")
        code = function(*arguments)
        if code:
            raise CudaFault(name, code)


def _loaded(candidates: Iterable[str]) -> ctypes.CDLL:
    reasons = []
    for path in candidates:
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            reasons.append(str(error))
    raise NoLibrary("; ".join(reasons) or "there is no libcuda.so.1 in the driver root")


# The kernels that the test runs, in PTX, and what they compute, in Python.

MASK = 0xFFFFFFFF
FACTOR = 0x9E3779B1  # odd, so that different words stay different
MIX, FILL, CHECK = b"dra_mix", b"dra_fill", b"dra_check"

PTX = b"""
.version 6.0
.target sm_50
.address_size 64

// data[i] = (data[i] ^ seed) * FACTOR + i
.visible .entry dra_mix(.param .u64 data, .param .u32 count, .param .u32 seed)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [seed];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %d3, %r6, 4;
    add.u64 %d4, %d2, %d3;
    ld.global.u32 %r7, [%d4];
    xor.b32 %r8, %r7, %r2;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r6;
    st.global.u32 [%d4], %r9;
DONE:
    ret;
}

// data[i] = word(first + i), with word(n) = ((low(n) + high(n) * FACTOR) * FACTOR) ^ seed
.visible .entry dra_fill(.param .u64 data, .param .u64 words, .param .u64 first, .param .u32 seed)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %d<12>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [words];
    ld.param.u64 %d3, [first];
    ld.param.u32 %r1, [seed];
    cvta.to.global.u64 %d4, %d1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    cvt.u64.u32 %d5, %r6;
    mul.wide.u32 %d6, %r5, %r3;
NEXT:
    setp.ge.u64 %p1, %d5, %d2;
    @%p1 bra DONE;
    add.u64 %d7, %d5, %d3;
    cvt.u32.u64 %r7, %d7;
    shr.u64 %d8, %d7, 32;
    cvt.u32.u64 %r8, %d8;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r7;
    mul.lo.u32 %r10, %r9, 0x9E3779B1;
    xor.b32 %r11, %r10, %r1;
    shl.b64 %d9, %d5, 2;
    add.u64 %d10, %d4, %d9;
    st.global.u32 [%d10], %r11;
    add.u64 %d5, %d5, %d6;
    bra NEXT;
DONE:
    ret;
}

// counter += how many data[i] differ from word(first + i)
.visible .entry dra_check(.param .u64 data, .param .u64 words, .param .u64 first, .param .u32 seed,
                          .param .u64 counter)
{
    .reg .pred %p<3>;
    .reg .b32 %r<13>;
    .reg .b64 %d<14>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [words];
    ld.param.u64 %d3, [first];
    ld.param.u32 %r1, [seed];
    ld.param.u64 %d11, [counter];
    cvta.to.global.u64 %d4, %d1;
    cvta.to.global.u64 %d12, %d11;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    cvt.u64.u32 %d5, %r6;
    mul.wide.u32 %d6, %r5, %r3;
NEXT:
    setp.ge.u64 %p1, %d5, %d2;
    @%p1 bra DONE;
    add.u64 %d7, %d5, %d3;
    cvt.u32.u64 %r7, %d7;
    shr.u64 %d8, %d7, 32;
    cvt.u32.u64 %r8, %d8;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r7;
    mul.lo.u32 %r10, %r9, 0x9E3779B1;
    xor.b32 %r11, %r10, %r1;
    shl.b64 %d9, %d5, 2;
    add.u64 %d10, %d4, %d9;
    ld.global.u32 %r12, [%d10];
    add.u64 %d5, %d5, %d6;
    setp.eq.u32 %p2, %r12, %r11;
    @%p2 bra NEXT;
    red.global.add.u32 [%d12], 1;
    bra NEXT;
DONE:
    ret;
}
\0"""


def mixed(words: array[int], seed: int) -> array[int]:
    """Return what `dra_mix` makes of these 32-bit words."""
    return array(words.typecode, (((word ^ seed) * FACTOR + index) & MASK for index, word in enumerate(words)))


# The report of a compute program: one JSON object in each line of its output.

PASSED, FAILED, COULD_NOT_RUN = "passed", "failed", "could-not-run"


def report_step(step: str) -> None:
    """Report that a step begins, so that a hang is attributed to it."""
    _write({"step": step})


def report_verdict(verdict: str, reason: str = "", detail: str = "", figures: Mapping[str, int] | None = None) -> None:
    """Report the verdict, which is the last line."""
    _write({"verdict": verdict, "reason": reason, "detail": detail[:500], "figures": dict(figures or {})})


def _write(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
