"""The test of one NVIDIA device: a context, memory written and read, a kernel run, everything compared.

In: a request with `candidates` and `helpers` (libraries), `pci` (the GPU's address), `is_thorough`. Out: steps and a
verdict. Only an error that the driver attributes to the device itself makes the test fail; one whose cause may lie
elsewhere (a fabric that is not ready, no library, no compiler, no memory) means that the test could not run.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.hardware.cuda import (
    CHECK,
    COULD_NOT_RUN,
    FAILED,
    FILL,
    MIX,
    PASSED,
    PTX,
    Cuda,
    CudaFault,
    NoLibrary,
    mixed,
    report_step,
    report_verdict,
)

MIB = 1 << 20
PATTERN_BYTES, CHUNK_BYTES, KERNEL_WORDS = 64 * MIB, 4 * MIB, 1 << 16
PATTERNS = (0x55555555, 0xAAAAAAAA)
BLOCK_BYTES, SPARED_BYTES, BLOCKS = 1024 * MIB, 512 * MIB, 2048
COPY_BYTES, COPIES = 16 * MIB, 32
COPY_FLOOR_MIB_S = 1024  # about a third of the bandwidth of four lanes of PCIe 3.0
# Errors of the device itself: ECC, NVLink, contained error, illegal address or instruction of a kernel that has none,
# timeout, hardware stack, misaligned, address space, program counter, launch.
DEVICE_ERRORS = frozenset([214, 220, 226, 700, 702, 714, 715, 716, 717, 718, 719])
UNKNOWN_ERROR = 999  # counts as an error of the device only if there was a context
REASONS = {
    2: "memory",
    46: "busy",
    100: "no-device",
    101: "no-device",
    **dict.fromkeys((200, 209, 218, 221, 222, 223), "jit"),
    802: "not-ready",
    803: "driver-mismatch",
}


class WrongData(Exception):
    """The device returned other data than it should have."""


class SlowCopies(Exception):
    """Copies between the machine and the device are too slow."""


class OtherDevice(Exception):
    """The library has chosen another device than the one that is to be tested."""


def main(request: Mapping[str, Any]) -> None:
    """Test the device and report what was found."""
    cuda: Cuda | None = None
    figures: dict[str, int] = {}
    try:
        report_step("library")
        cuda = Cuda(request["candidates"], request["helpers"])
        _test(cuda, request, figures)
    except NoLibrary as error:
        report_verdict(COULD_NOT_RUN, "no-library", str(error))
    except OtherDevice as error:
        report_verdict(COULD_NOT_RUN, "other-device", str(error))
    except MemoryError:
        report_verdict(COULD_NOT_RUN, "memory", "the machine has no memory for the test")
    except WrongData as error:
        report_verdict(FAILED, "wrong-data", str(error))
    except SlowCopies as error:
        report_verdict(FAILED, "slow-copies", str(error))
    except CudaFault as fault:
        _report_fault(fault, has_context=cuda is not None and cuda.has_context)
    else:
        report_verdict(PASSED, figures=figures)


def _report_fault(fault: CudaFault, *, has_context: bool) -> None:
    if fault.code in DEVICE_ERRORS or (fault.code == UNKNOWN_ERROR and has_context):
        report_verdict(FAILED, f"cuda-{fault.code}", str(fault))
    else:
        report_verdict(COULD_NOT_RUN, REASONS.get(fault.code, f"cuda-{fault.code}"), str(fault))


def _test(cuda: Cuda, request: Mapping[str, Any], figures: dict[str, int]) -> None:
    began = time.monotonic()
    report_step("init")
    found = cuda.open()
    if found and found.lower() not in {request["pci"], f"0000{request['pci']}"}:
        raise OtherDevice(f"the library shows {found}, not {request['pci']}")
    report_step("context")
    cuda.make_context()
    figures["contextMs"] = round((time.monotonic() - began) * 1000)
    report_step("memory")
    _test_memory(cuda)
    report_step("kernel")
    module = cuda.load(PTX)
    _test_kernel(cuda, module)
    if request["is_thorough"]:
        report_step("sweep")
        figures["sweptMiB"] = _sweep(cuda, module)
        report_step("copies")
        figures.update(_copy_speeds(cuda))
    report_step("end")
    cuda.release_context()
    figures["totalMs"] = round((time.monotonic() - began) * 1000)


def _test_memory(cuda: Cuda) -> None:
    """Fill memory with two patterns, then with random bytes, and compare what is read back."""
    address = cuda.allocate(PATTERN_BYTES)
    for pattern in PATTERNS:
        cuda.fill(address, pattern, PATTERN_BYTES // 4)
        _compare(cuda, address, PATTERN_BYTES, pattern.to_bytes(4, "little") * (CHUNK_BYTES // 4))
    random = os.urandom(CHUNK_BYTES)
    for offset in range(0, PATTERN_BYTES, CHUNK_BYTES):
        cuda.write(address + offset, random)
    _compare(cuda, address, PATTERN_BYTES, random)
    cuda.free(address)


def _compare(cuda: Cuda, address: int, size: int, chunk: bytes) -> None:
    buffer = ctypes.create_string_buffer(len(chunk))  # one for all: the kernel would clear each page of each new one
    for offset in range(0, size, len(chunk)):
        ctypes.memset(buffer, 0, len(chunk))  # what is not written now must not look like what was read before
        cuda.read_into(buffer, address + offset)
        if buffer.raw != chunk:
            raise WrongData(f"memory read back differs from what was written, within {len(chunk)} bytes at {offset}")


def _test_kernel(cuda: Cuda, module: ctypes.c_void_p) -> None:
    """Run a kernel over random words, and compare the result with the same computation on the CPU."""
    words = array("I", os.urandom(4 * KERNEL_WORDS))
    seed = int.from_bytes(os.urandom(4), "little")
    address = cuda.allocate(4 * KERNEL_WORDS)
    cuda.write(address, words.tobytes())
    arguments = (ctypes.c_uint64(address), ctypes.c_uint32(KERNEL_WORDS), ctypes.c_uint32(seed))
    cuda.run(module, MIX, KERNEL_WORDS // 256, arguments)
    if cuda.read(address, 4 * KERNEL_WORDS) != mixed(words, seed).tobytes():
        raise WrongData("a kernel's results differ from those of the same program on the CPU")
    cuda.free(address)


def _sweep(cuda: Cuda, module: ctypes.c_void_p) -> int:
    """Fill nearly all of the free memory, and count the words that differ; return how many MiB that was."""
    blocks = _blocks(cuda)
    counter = cuda.allocate(4)
    for seed in (0, 0xFFFFFFFF):
        cuda.fill(counter, 0, 1)
        for kernel in (FILL, CHECK):
            first = 0
            for address, size in blocks:
                words = size // 4
                wide = [ctypes.c_uint64(number) for number in (address, words, first)]
                more = [ctypes.c_uint64(counter)] if kernel is CHECK else []
                cuda.run(module, kernel, BLOCKS, [*wide, ctypes.c_uint32(seed), *more])
                first += words
        wrong = int.from_bytes(cuda.read(counter, 4), "little")
        if wrong:
            raise WrongData(f"{wrong} words of memory differ from what was written")
    for address in (counter, *(address for address, _ in blocks)):
        cuda.free(address)
    return sum(size for _, size in blocks) // MIB


def _blocks(cuda: Cuda) -> list[tuple[int, int]]:
    """Allocate nearly all of the free memory; return the address and size of each block."""
    free, _ = cuda.memory()
    left = max(free - SPARED_BYTES, free // 2) // 4 * 4
    blocks: list[tuple[int, int]] = []
    while left > 0:
        size = min(left, BLOCK_BYTES)
        try:
            blocks.append((cuda.allocate(size), size))
        except CudaFault as fault:
            if fault.code != 2 or not blocks:  # fragmented memory can't be allocated in whole blocks
                raise
            break
        left -= size
    return blocks


def _copy_speeds(cuda: Cuda) -> Mapping[str, int]:
    """Return how fast copies are in both directions, in MiB a second. Raises: SlowCopies."""
    device, host = cuda.allocate(COPY_BYTES), cuda.allocate_host(COPY_BYTES)
    found = {}
    directions: dict[str, Callable[[], None]] = {
        "copyInMiBs": lambda: cuda.copy_in(device, host, COPY_BYTES),
        "copyOutMiBs": lambda: cuda.copy_out(host, device, COPY_BYTES),
    }
    for name, copy in directions.items():
        # The fastest of many copies is used: the first one wakes the link, and other work on the machine slows some
        # down.
        found[name] = round(COPY_BYTES / MIB / max(min(_seconds(copy) for _ in range(COPIES)), 1e-6))
        if found[name] < COPY_FLOOR_MIB_S:
            raise SlowCopies(f"{name}: {found[name]} MiB/s is less than {COPY_FLOOR_MIB_S}")
    return found


def _seconds(copy: Callable[[], None]) -> float:
    began = time.monotonic()
    copy()
    return time.monotonic() - began
