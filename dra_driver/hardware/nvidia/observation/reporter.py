"""The health ability of NVIDIA's hardware: the watch of the current session, the kernel log and the bus, as one report.

Any thread may call any method. Sessions begin and end (a GPU was lost, the driver is unloaded); what a watch has found
is kept until it is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.hardware.bus import bus_state
from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.kernel_records import KERNEL_LOG
from dra_driver.hardware.nvidia.health.kernel_log import KernelLog
from dra_driver.hardware.nvidia.observation.watch import HealthWatch, Watched
from dra_driver.hardware.port import Roots

if TYPE_CHECKING:
    from dra_driver.hardware.nvidia.metering.meter import NvidiaMeter
    from dra_driver.hardware.nvidia.session import SessionWatch


class NvidiaHealth:
    """What is observed from `watch_health` until `end_health`."""

    def __init__(self, roots: Roots, notify: Callable[[], None], *, log_position: int) -> None:
        self._roots, self._notify = roots, notify
        self._log = KernelLog(Path(roots.dev, KERNEL_LOG), log_position)
        self._found = Watched()
        self._mutex = threading.Lock()
        self._watch: HealthWatch | None = None

    def begin_session(self, meter: Callable[[], NvidiaMeter | None]) -> HealthWatch:
        """Watch a library that was just initialised, and return the watch, which the session has to end.

        `meter` returns where its readings go while the GPUs are metered.
        """
        with self._mutex:
            self._watch = HealthWatch(self._found, self._notify, meter=meter)
            return self._watch

    def end_session(self, watch: SessionWatch) -> None:
        """Record that a watch ends."""
        with self._mutex:
            if self._watch is watch:
                self._watch = None

    def report(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call; after an Xid, with readings that are newer."""
        news = self._log.new_records()
        watch, found = self._watch, self._found
        with found.changed:
            is_urgent = is_urgent or bool(news.xids or found.xids)
            wanted = found.begun + 1  # a round under way may have read a GPU before what happened to it
        if watch is not None and is_urgent and not watch.silent_s():
            self._await_round(watch, wanted, patience_s)
        with found.changed:
            xids, vitals = (*news.xids, *found.xids), tuple(found.vitals.values())
            found.xids.clear()
            found.vitals.clear()
        return HealthReport(
            xids,
            vitals,
            is_driver_new=news.is_driver_new,
            silent_s=watch.silent_s() if watch is not None else 0.0,
            log_position=news.position,
            problem=self._log.problem,
        )

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the bus shows of GPUs."""
        return {gpu: bus_state(self._roots, gpu, ("nvidia",)) for gpu in gpus}

    def close(self) -> None:
        """Close the kernel log."""
        self._log.close()

    def _await_round(self, watch: HealthWatch, wanted: int, patience_s: float) -> None:
        """Wait for the end of a round of polling, by its number."""
        watch.poll_soon()
        with self._found.changed:
            self._found.changed.wait_for(lambda: self._found.ended >= wanted, patience_s)
