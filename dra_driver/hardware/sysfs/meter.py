"""The meter for GPUs that are read from sysfs: rounds of readings by a thread of its own.

In: a reader of all GPUs, and a plan. Out: the newest reading of each GPU. A read that never returns holds up only this
thread; callers then get the readings from before it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

from dra_driver.hardware.metered import MeterPlan, MeterReport, Reading
from dra_driver.telemetry.part_thread import PartThread


class SysfsMeter:
    """A thread that measures, from the construction of this object until `close`. Any thread may call any method.

    Raises: NodeError("node.thread").
    """

    def __init__(self, vendor: str, plan: MeterPlan, read: Callable[[], Iterable[Reading]]) -> None:
        self._plan, self._read = plan, read
        self._readings: tuple[Reading, ...] = ()
        self._end = threading.Event()
        self._thread = PartThread(f"{vendor}-meter", self._run, hang_s=math.inf)  # a read may hang in a driver
        self._thread.start()

    def report(self) -> MeterReport:
        """Return the newest readings."""
        return MeterReport(self._readings)

    def close(self) -> None:
        """Stop measuring."""
        self._thread.release()
        self._end.set()

    def _run(self, _thread: PartThread) -> None:
        while not self._end.is_set():
            self._readings = tuple(self._read())
            self._plan.notify()
            self._end.wait(self._plan.beat_s)
