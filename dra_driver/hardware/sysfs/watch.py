"""The health watch for GPUs that are read from sysfs: rounds of readings by a thread of its own.

In: a reader of all GPUs. Out: reports of what was read since the last report. A read that never returns holds up only
this thread; the report then states for how long. The lack of a file never means that all is well.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_driver.hardware.evidence import HealthReport, Vitals
from dra_driver.hardware.kernel_records import KernelRecords
from dra_driver.telemetry.part_thread import PartThread

POLL_SECONDS = 10.0
SILENT_SECONDS = 5.0  # a round takes milliseconds; one that takes longer hangs in a driver


@dataclass(frozen=True, slots=True)
class VitalsSource:
    """What reads the vitals of each GPU, and the kernel log if that is one of its sources."""

    read: Callable[[], Iterable[Vitals]]
    log: KernelRecords | None = None


class SysfsWatch:
    """A thread that reads the vitals of all GPUs, from the construction of this object until `close`.

    Raises: NodeError("node.thread").
    """

    def __init__(
        self, vendor: str, source: VitalsSource, notify: Callable[[], None], *, poll_s: float = POLL_SECONDS
    ) -> None:
        self._source, self._notify, self._poll_s = source, notify, poll_s
        self._changed = threading.Condition()
        self._vitals: dict[str, Vitals] = {}
        self._rounds, self._wanted = 0, 0
        self._began: float | None = None  # when the round under way began
        self._is_closed = False
        self._thread = PartThread(f"{vendor}-health", self._run, hang_s=math.inf)  # a read may hang in a driver
        self._thread.start()

    def report(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was read since the last call; if it `is_urgent`, wait for a round that begins now."""
        with self._changed:
            if is_urgent:
                wanted = self._wanted = self._rounds + (2 if self._began is not None else 1)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._rounds >= wanted or self._is_closed, patience_s)
            vitals, began = tuple(self._vitals.values()), self._began
            self._vitals.clear()
        silent = time.monotonic() - began if began is not None else 0.0
        return HealthReport(
            readings=vitals,
            silent_s=silent if silent >= SILENT_SECONDS else 0.0,
            problem=self._source.log.problem if self._source.log else "",
        )

    def close(self) -> None:
        """Stop reading."""
        self._thread.release()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, _thread: PartThread) -> None:
        try:
            self._read_rounds()
        finally:
            if self._source.log is not None:
                self._source.log.close()

    def _read_rounds(self) -> None:
        while not self._is_closed:
            with self._changed:
                self._began = time.monotonic()
            found = {one.gpu: one for one in self._source.read()}
            with self._changed:
                self._vitals.update(found)
                self._began, self._rounds = None, self._rounds + 1
                self._changed.notify_all()
            self._notify()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._wanted > self._rounds, self._poll_s)
