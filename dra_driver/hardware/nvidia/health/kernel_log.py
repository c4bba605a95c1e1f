"""The kernel log as a source of Xids: records that the NVIDIA driver wrote, from the start of the ring.

In: `<dev-root>/kmsg`, the device or a plain file of such records. Out: Xids. A record counts only if the kernel wrote
it (facility 0) and it begins with the driver's words, so neither what a user writes to /dev/kmsg nor the name of a
process, which the driver prints further on in its lines, is ever taken for an Xid.

Source: Linux Documentation/ABI/testing/dev-kmsg; the driver's own format, `NVRM: Xid (PCI:dddd:bb:dd GPU-I:nn): code`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.evidence import Source, XidReport
from dra_driver.model.names import normal_pci_address

RECORD_BYTES = 8192  # the kernel returns no longer record
RECORDS_MOST = 20_000  # in one turn
TAIL_BYTES = 1 << 16  # of a plain file, from which its last number is read
FALLEN_OFF_BUS = 79
SAID_TWICE_SECONDS = 10.0  # the driver reports a loss in two lines, one of them without a code
_RECORD = re.compile(
    r"(?P<prefix>[0-9]{1,6}),(?P<sequence>[0-9]{1,19}),(?P<time>[0-9]{1,19}),[^;\n]{0,99};(?P<text>.*)"
)
_ADDRESS = r"(?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}(?: GPU-I:(?P<gi>[0-9]{{1,4}}))?(?: GPU-CI:(?P<ci>[0-9]{{1,4}}))?\): "
                  r"(?P<code>[0-9]{1,5})(?=[, ]|$)")  # fmt: skip
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}: GPU has fallen off the bus")
_OFF_BUS_EARLY = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}\b")
_LOADED = "NVRM: loading NVIDIA UNIX"


@dataclass(frozen=True, slots=True)
class LogNews:
    """What the log had to say since the last look. `position` is the sequence number of the last record."""

    xids: tuple[XidReport, ...] = ()
    is_driver_new: bool = False
    position: int = -1


class KernelLog:
    """Reads on from where it ended; records up to `position` have been read before.

    `problem` says why the log can't be read; "" if it can.
    """

    def __init__(self, path: Path, position: int) -> None:
        self._path, self._position = path, position
        self._known = position  # records up to this one were read before the file was opened
        self._fd: int | None = None
        self._rest = b""
        self._lost: dict[str, float] = {}  # GPUs that have fallen off the bus, and when that was last written
        self._has_looked = False
        self._early: tuple[str, int] = ("", -9)  # a GPU whose message may end "fallen off the bus", and where it began
        self.problem = ""

    def news(self) -> LogNews:
        """Return what was written since the last call; nothing where the log can't be read."""
        found: list[XidReport] = []
        is_driver_new = False
        for sequence, at, text in self._records():
            if text.startswith(_LOADED):
                found.clear()
                is_driver_new = True
            elif (xid := self._xid(sequence, at, text)) is not None and not self._is_said_again(xid):
                found.append(xid)
        return LogNews(tuple(found), is_driver_new, self._position)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _xid(self, sequence: int, at: float, text: str) -> XidReport | None:
        match = _XID.match(text)
        if match:
            gi, ci = (int(match[name]) if match[name] else None for name in ("gi", "ci"))
            return XidReport(_gpu(match["gpu"]), int(match["code"]), at, Source.KERNEL_LOG, gi, ci)
        gpu = ""
        if match := _OFF_BUS.match(text):
            gpu = match["gpu"]
        elif match := _OFF_BUS_EARLY.match(text):
            self._early = (match["gpu"], sequence)
        if self._early[0] and sequence - self._early[1] <= 2 and text.startswith("NVRM: ") and "fallen off the" in text:
            gpu, self._early = self._early[0], ("", -9)
        return XidReport(_gpu(gpu), FALLEN_OFF_BUS, at, Source.KERNEL_LOG) if gpu else None

    def _is_said_again(self, xid: XidReport) -> bool:
        """Return whether this is the second line about one loss."""
        if xid.code != FALLEN_OFF_BUS:
            return False
        before = self._lost.get(xid.gpu, float("-inf"))
        self._lost[xid.gpu] = xid.at
        return abs(xid.at - before) < SAID_TWICE_SECONDS

    def _records(self) -> Iterator[tuple[int, float, str]]:
        """Yield the sequence number, time and text of the kernel's own records that are new."""
        now = time.time()
        began = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        is_first, self._has_looked = not self._has_looked, True
        for number, line in enumerate(self._lines()):
            match = _RECORD.match(line)
            if match is None:
                continue
            self.problem, sequence = "", int(match["sequence"])
            if sequence <= self._known:
                continue
            self._position = max(self._position, sequence)
            if int(match["prefix"]) >> 3 == 0:
                # What came since the last look has just happened, whatever the clock of a plain file's writer says.
                at = min(now, began + int(match["time"]) / 1e6) if is_first else now + number / 1e6
                yield sequence, at, match["text"]

    def _lines(self) -> Iterator[str]:
        for _ in range(RECORDS_MOST):
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
            self._take_place(self._fd)
        self._known = self._position
        return self._fd

    def _take_place(self, fd: int) -> None:
        """Begin anew in a plain file that does not go on where the last one ended."""
        size = os.fstat(fd).st_size
        text = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")
        numbers = [int(match["sequence"]) for match in map(_RECORD.match, text.split("\n")) if match]
        if not numbers or numbers[-1] < self._position:
            self._position = -1
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
        """Return whether a plain file that was read to its end was cut short, or is another one now."""
        try:
            ours, there = os.fstat(fd), self._path.stat()
        except OSError:
            return True
        return (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) or ours.st_size < os.lseek(fd, 0, os.SEEK_CUR)

    def _fail(self, error: OSError) -> None:
        self.problem = f"the kernel log {self._path} can't be read: {error.strerror}"


def _gpu(text: str) -> str:
    return normal_pci_address(f"{text}.0")
