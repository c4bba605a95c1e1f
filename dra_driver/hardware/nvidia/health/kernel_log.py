"""The kernel log as a source of Xids: records that the NVIDIA driver wrote.

In: the kernel's records. Out: Xids. A record counts only if it begins like the driver's messages, so that the name of a
process, which the driver prints further on in its lines, is never mistaken for an Xid.

Source: the driver's own format, `NVRM: Xid (PCI:dddd:bb:dd GPU-I:nn): code`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.evidence import Source, XidReport
from dra_driver.hardware.kernel_records import KernelRecords
from dra_driver.model.names import normal_pci_address

FALLEN_OFF_BUS = 79
REPEATED_SECONDS = 10.0  # the driver reports a loss in two lines, one of them without a code
_ADDRESS = r"(?:PCI:)?(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}(?: GPU-I:(?P<gi>[0-9]{{1,4}}))?(?: GPU-CI:(?P<ci>[0-9]{{1,4}}))?\): "
                  r"(?P<code>[0-9]{1,5})(?=[, ]|$)")  # fmt: skip
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at )?{_ADDRESS}: GPU has fallen off the bus")
_OFF_BUS_EARLY = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}\b")
_LOADED = "NVRM: loading NVIDIA UNIX"


@dataclass(frozen=True, slots=True)
class NewLogRecords:
    """What was written to the log since it was last read. `position` is the sequence number of the last record."""

    xids: tuple[XidReport, ...] = ()
    is_driver_new: bool = False
    position: int = -1


class KernelLog:
    """A reader that continues where the last call ended; records up to `position` have been read before."""

    def __init__(self, path: Path, position: int) -> None:
        self._records = KernelRecords(path, position)
        self._lost: dict[str, float] = {}  # GPUs that have fallen off the bus, and when that was last written
        self._early: tuple[str, int] = ("", -9)  # a GPU whose message may end "fallen off the bus", and where it began

    @property
    def problem(self) -> str:
        """Return why the log can't be read, "" if it can."""
        return self._records.problem

    def new_records(self) -> NewLogRecords:
        """Return what was written since the last call; nothing where the log can't be read."""
        found: list[XidReport] = []
        is_driver_new = False
        for sequence, at, text in self._records.new():
            if text.startswith(_LOADED):
                found.clear()
                is_driver_new = True
            elif (xid := self._xid(sequence, at, text)) is not None and not self._is_repeated(xid):
                found.append(xid)
        return NewLogRecords(tuple(found), is_driver_new, self._records.position)

    def close(self) -> None:
        """Close the file."""
        self._records.close()

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

    def _is_repeated(self, xid: XidReport) -> bool:
        """Return whether this is the second line about one loss."""
        if xid.code != FALLEN_OFF_BUS:
            return False
        before = self._lost.get(xid.gpu, float("-inf"))
        self._lost[xid.gpu] = xid.at
        return abs(xid.at - before) < REPEATED_SECONDS


def _gpu(text: str) -> str:
    return normal_pci_address(f"{text}.0")
