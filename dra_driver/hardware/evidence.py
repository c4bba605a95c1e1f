"""The kernel log: the records that the kernel itself wrote, from the start of the ring.

In: `<dev-root>/kmsg`, the device or a plain file of such records. Out: numbers, times and texts. A record counts only
if the kernel wrote it (facility 0), so what a user writes to /dev/kmsg is never mistaken for a driver's message.

Source: Linux Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.base.machine import boot_time

KERNEL_LOG = "kmsg"  # below the folder of devices
RECORD_BYTES = 8192  # the kernel returns no longer record
MAX_RECORDS = 20_000  # in one turn
TAIL_BYTES = 1 << 16  # of a plain file, from which its last number is read
_RECORD = re.compile(
    r"(?P<prefix>[0-9]{1,6}),(?P<sequence>[0-9]{1,19}),(?P<time>[0-9]{1,19}),[^;\n]{0,99};(?P<text>.*)"
)


class KernelRecords:
    """A reader that continues where its last call ended.

    `position` is the sequence number of the last record that was read, -1 for none. `problem` says why the log can't
    be read; "" if it can.
    """

    def __init__(self, path: Path, position: int = -1) -> None:
        self._path, self.position = path, position
        self._known = position  # records up to this one were read before the file was opened
        self._fd: int | None = None
        self._rest = b""
        self._has_looked = False
        self.problem = ""

    def new(self) -> Iterator[tuple[int, float, str]]:
        """Yield the sequence number, time and text of the kernel's own records that were written since the last call.

        Times are in boot time. There are none where the log can't be read.
        """
        now = boot_time()
        began = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        is_first, self._has_looked = not self._has_looked, True
        for number, line in enumerate(self._lines()):
            match = _RECORD.match(line)
            if match is None:
                continue
            self.problem, sequence = "", int(match["sequence"])
            if sequence <= self._known:
                continue
            self.position = max(self.position, sequence)
            if int(match["prefix"]) >> 3 == 0:
                # A record that came since the last call is new, whatever time the writer of a plain file put on it.
                at = min(now, began + int(match["time"]) / 1e6) if is_first else now + number / 1e6
                yield sequence, at, match["text"]

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lines(self) -> Iterator[str]:
        for _ in range(MAX_RECORDS):
            fd = self._fd if self._fd is not None else self._open()
            block = self._read(fd) if fd is not None else b""
            if not block:
                return
            self._rest += block
            *lines, self._rest = self._rest.split(b"\n")
            self._rest = self._rest[-RECORD_BYTES:]
            yield from (line.decode("utf-8", "replace") for line in lines)

    def _open(self) -> int | None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._fail(error)
            return None
        self.problem, self._rest = "", b""
        if stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._find_position(self._fd)
        self._known = self.position
        return self._fd

    def _find_position(self, fd: int) -> None:
        """Begin a plain file at its start unless it continues the last one; report a file without kernel records."""
        size = os.fstat(fd).st_size
        text = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")
        numbers = [int(match["sequence"]) for match in map(_RECORD.match, text.split("\n")) if match]
        if not numbers or numbers[-1] < self.position:
            self.position = -1
        if size and not numbers:
            self.problem = f"{self._path} has no records of /dev/kmsg"

    def _read(self, fd: int) -> bytes:
        """Return the next record, or a block of a plain file; nothing where there is no more now."""
        try:
            block = os.read(fd, RECORD_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            # Records were overwritten before they were read, or one is longer than any should be: go on with the next.
            if error.errno in {errno.EPIPE, errno.EINVAL}:
                return b"\n"
            self._fail(error)
            self.close()
            return b""
        if not block and self._is_replaced(fd):
            self.close()
        return block

    def _is_replaced(self, fd: int) -> bool:
        """Return whether a plain file that was read to its end was truncated or replaced."""
        try:
            opened, named = os.fstat(fd), self._path.stat()
        except OSError:
            return True
        is_same = (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
        return not is_same or opened.st_size < os.lseek(fd, 0, os.SEEK_CUR)

    def _fail(self, error: OSError) -> None:
        self.problem = f"the kernel log {self._path} can't be read: {error.strerror}"


# Evidence: what a vendor observes about the health of its GPUs, frozen and without judgement.

HARDWARE_THERMAL = 0x40  # of `Vitals.clock_reasons`: the hardware throttles its clocks because it is too hot


class Source(enum.StrEnum):
    """Where an observation comes from. Two sources often report the same event."""

    EVENT = "event"  # the library's event set
    KERNEL_LOG = "kernel-log"


@dataclass(frozen=True, slots=True)
class XidReport:
    """One Xid error of a GPU, or of one of its instances where the driver attributes it."""

    gpu: str
    code: int
    at: float
    source: Source
    gi_id: int | None = None
    ci_id: int | None = None


class BusState(enum.StrEnum):
    """What sysfs shows of a GPU's PCI function."""

    HERE = "here"
    GONE = "gone"  # the device no longer has a folder
    DEAD = "dead"  # it has one, but its configuration space reads all ones
    ELSEWHERE = "elsewhere"  # another kernel driver has it, or none: it is absent by intent


class DriverReset(enum.StrEnum):
    """What the kernel driver last logged about a reset of a GPU; it resets a GPU that hangs without being asked."""

    NONE = "none"
    UNDER_WAY = "under-way"
    DONE = "done"  # since the last reading
    FAILED = "failed"
    LOST = "lost"  # it found the GPU gone from the bus


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one round of polling found on one GPU.

    `is_lost` is None if the GPU's answer does not show whether it is lost. `recovery_action` is NVML's number.
    `thermal_margin` and `slowdown_margin` are in degrees Celsius, signed: the GPU slows down where the first falls
    below the second. `clock_reasons` is NVML's bit set. `links` has for each NVLink of the GPU whether it is active.
    `pcie_replays` counts since the driver was loaded. `reset` is None if there is no record of the driver's own resets.
    """

    gpu: str
    at: float
    uuid: str = ""
    is_lost: bool | None = False
    recovery_action: int | None = None
    ecc_uncorrectable: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    thermal_margin: int | None = None
    slowdown_margin: int | None = None
    clock_reasons: int | None = None
    links: tuple[bool, ...] = ()
    fabric_summary: int | None = None
    pcie_replays: int | None = None
    pcie_lanes: int | None = None
    pcie_generation: int | None = None
    reset: DriverReset | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a vendor observed since it was last asked.

    `xids` has each report once; `readings` are the newest of each GPU, and `bus` is what sysfs shows now.
    `is_driver_new` is true once after the kernel driver was loaded again, which ends what earlier Xids meant.
    `silent_s` is for how many seconds the library has been silent (0 while it answers).
    `problem` says which source can't be read, and why.
    """

    xids: tuple[XidReport, ...] = ()
    readings: tuple[Vitals, ...] = ()
    bus: tuple[tuple[str, BusState], ...] = ()
    is_driver_new: bool = False
    silent_s: float = 0.0
    log_position: int = -1  # the sequence number of the last kernel message that was read; -1 for none
    problem: str = ""


# Compute program: the program that tests a device, and its input.


@dataclass(frozen=True, slots=True)
class ComputeProgram:
    """A program of this package.

    `module` has a function `main(request)`, and imports nothing but the standard library and modules beside it.
    `environment` is its whole environment.
    """

    module: str
    request: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
