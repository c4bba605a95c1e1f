"""Observation: health and metering of the GPUs of each session of the library, by one thread.

The thread of a session waits for events, polls the GPUs' health and meters what they do, while at least one of health
and metering is on. Only callers that want new vitals wait for it, each with a deadline of its own. A call that hangs
stops the watch, which then counts as silent; the workers of the GPUs are not affected.

In: an open library. Out: Xids, vitals and readings, with the kernel log and the bus as one report. Any thread may ask.
Sessions begin and end (a GPU was lost, the driver is unloaded); what a watch has seen is kept until it is reported.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.base.machine import boot_time
from dra_driver.base.names import normal_pci_address
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.evidence import KERNEL_LOG, BusState, HealthReport, Source, Vitals, XidReport
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.nvidia.health import (
    XID,
    HealthNvml,
    KernelLog,
    LibraryEvent,
    WatchedGpu,
    address_of,
    read_vitals,
    watched_gpu,
)
from dra_driver.hardware.nvidia.instances import Worker, ended
from dra_driver.hardware.nvidia.queries import NvmlFault
from dra_driver.hardware.nvidia.session import WATCH_ENDS_S, NvmlSession
from dra_driver.hardware.pci import bus_state
from dra_driver.hardware.port import Roots

if TYPE_CHECKING:
    from dra_driver.hardware.nvidia.metering import MeterRounds, NvidiaMeter
    from dra_driver.hardware.nvidia.session import SessionWatch

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0
POLLS_APART_SECONDS = 0.5  # the shortest time between two rounds of polling, however many events come
WAIT_MS = 500  # how long to wait for an event; also the longest that the library stays in use after `stop`
MAX_EVENTS = 1000  # the most events that are taken in one turn, so that a storm of them can't hold up polling
_IDLE = "nothing"  # recorded between two calls, so that only a call that hangs is ever old
EXPECTED_SECONDS = 5.0  # a call that takes longer makes the watch silent


@dataclass
class Watched:
    """What a watch has found since its last report was collected. Guarded by `changed`."""

    xids: list[XidReport] = field(default_factory=list)
    vitals: dict[str, Vitals] = field(default_factory=dict)
    begun: int = 0  # rounds of polling
    ended: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)


class HealthWatch:
    """The watch of one session. `notify` is called after each event and each round of polling.

    `meter` returns where readings go while the GPUs are metered. Without `polls` no vitals are read.
    """

    def __init__(
        self,
        found: Watched,
        notify: Callable[[], None],
        clock: Callable[[], float] = boot_time,
        *,
        meter: Callable[[], NvidiaMeter | None] = lambda: None,
        polls: bool = True,
    ) -> None:
        self._found, self._notify, self._clock = found, notify, clock
        self._meter, self._polls = meter, polls
        self._rounds: MeterRounds | None = None
        self._worker = Worker("health")
        self._nvml = HealthNvml(self._worker.mark)
        self._stop, self._is_wanted = threading.Event(), threading.Event()
        self._gpus: dict[int, WatchedGpu] = {}
        self._turned_at = time.monotonic()
        self._job: Future[None] = self._worker.submit(self._run)

    def poll_soon(self) -> None:
        """Poll at the next chance rather than when the next round is due."""
        self._is_wanted.set()

    def silent_s(self) -> float:
        """Return for how many seconds a call has not returned, or the watch has ended; 0 while all is well."""
        if self._job.done() and not self._stop.is_set():
            return time.monotonic() - self._turned_at
        seconds = self._worker.waits_for()[1]
        return seconds if seconds > EXPECTED_SECONDS else 0.0

    def end(self, timeout_s: float) -> bool:
        """Stop using the library; return whether the thread has stopped within the time."""
        self._stop.set()
        self._worker.stop()
        return ended(self._job, timeout_s)

    def _run(self) -> None:
        events = None
        try:
            events = self._open()
            self._is_wanted.set()  # so that there are readings before the GPUs are offered
            due = polled_at = float("-inf")
            while not self._stop.is_set():
                self._turned_at = time.monotonic()
                self._wait(events)
                if self._is_wanted.is_set() or time.monotonic() >= due:
                    self._stop.wait(max(0.0, polled_at + POLLS_APART_SECONDS - time.monotonic()))
                    self._is_wanted.clear()
                    if self._polls:
                        self._poll()
                    polled_at = time.monotonic()
                    due = polled_at + POLL_SECONDS
                self._measure()
        except NvmlFault as fault:
            log.warning("health is not watched", extra=fields(err=str(fault)))
        except Exception:
            log.exception("health is not watched any more")
            raise
        finally:
            if self._rounds is not None:
                self._rounds.close()
            self._close(events)

    def _open(self) -> Any:
        """Find the GPUs and return an event set for them, or None where no GPU supports events. Raises: NvmlFault."""
        events = self._new_event_set()
        is_any = False
        for index in range(self._nvml.count()):
            try:
                handle = self._nvml.gpu(index)
                address = normal_pci_address(self._nvml.pci_address(handle))
                self._gpus[address_of(handle)] = watched_gpu(self._nvml, handle, address)
                is_any |= events is not None and self._nvml.register(handle, events)
            except (NvmlFault, ValueError) as fault:
                log.info("a GPU is not watched", extra=fields(count=index, err=str(fault)))
        if events is not None and not is_any:
            self._close(events)
            return None
        return events

    def _new_event_set(self) -> Any:
        try:
            return self._nvml.new_event_set()
        except NvmlFault:
            return None

    def _close(self, events: Any) -> None:
        if events is not None:
            try:
                self._nvml.free_event_set(events)
            except NvmlFault:
                return  # the library is gone, and the event set with it

    def _wait(self, events: Any) -> None:
        """Wait for the next event, and take it and those that have already come."""
        wait_ms = 0 if self._is_wanted.is_set() else WAIT_MS
        if events is None:
            self._pause(wait_ms)
            return
        began = time.monotonic()
        try:
            for _ in range(MAX_EVENTS):
                event = self._nvml.wait(events, wait_ms)
                if event is None:
                    break
                self._take(event)
                wait_ms = 0
            self._pause(
                wait_ms - 1000 * (time.monotonic() - began)
            )  # the library may return at once instead of waiting
        except NvmlFault:  # a GPU was lost: the next round of polling shows which
            self._worker.mark(_IDLE)
            self._stop.wait(WAIT_MS / 1000)

    def _pause(self, wait_ms: float) -> None:
        """Wait until readings are wanted, for `wait_ms` milliseconds at most."""
        self._worker.mark(_IDLE)
        self._is_wanted.wait(max(0.0, wait_ms / 1000))

    def _gpu_of(self, event: LibraryEvent) -> WatchedGpu | None:
        """Return the GPU that an event is about, whichever of its handles the library uses."""
        known = self._gpus.get(event.device)
        if known is not None:
            return known
        try:
            address = normal_pci_address(self._nvml.pci_address(event.handle))
        except (NvmlFault, ValueError):
            return None
        return next((gpu for gpu in self._gpus.values() if gpu.address == address), None)

    def _take(self, event: LibraryEvent) -> None:
        gpu = self._gpu_of(event)
        if gpu is None:
            return
        if event.kind == XID:
            if (meter := self._meter()) is not None:
                meter.count_xid(gpu.address, event.gi_id, event.data)
            xid = XidReport(gpu.address, event.data, self._clock(), Source.EVENT, event.gi_id, event.ci_id)
            with self._found.changed:
                del self._found.xids[:-MAX_EVENTS]
                self._found.xids.append(xid)
        self._is_wanted.set()  # whatever the event is, new readings show what it means
        self._notify()

    def _poll(self) -> None:
        with self._found.changed:
            self._found.begun += 1
        for gpu in self._gpus.values():
            if self._stop.is_set():
                break
            vitals = read_vitals(self._nvml, gpu, self._clock)
            with self._found.changed:
                self._found.vitals[gpu.address] = vitals
        with self._found.changed:
            self._found.ended = self._found.begun
            self._found.changed.notify_all()
        self._notify()

    def _measure(self) -> None:
        """Take a round of readings if one is due."""
        meter = self._meter()
        if self._rounds is not None and self._rounds.meter is not meter:
            self._rounds.close()
            self._rounds = None
        if meter is None:
            return
        if self._rounds is None:
            from dra_driver.hardware.nvidia.metering import MeterRounds  # noqa: PLC0415 - only where it is wanted

            gpus = {gpu.address: gpu.handle for gpu in self._gpus.values()}
            self._rounds = MeterRounds(meter, self._worker.mark, gpus)
        self._rounds.run()


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


class Observation:
    """The two observers of a node's GPUs. `session` is the one that is open, None while the library is closed."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._health: NvidiaHealth | None = None
        self._meter: NvidiaMeter | None = None

    def begin_health(self, session: NvmlSession | None, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe the health of the GPUs (port.HealthReporter)."""
        self._health = NvidiaHealth(self._roots, notify, log_position=log_position)
        self.watch(session)

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call (port.HealthReporter)."""
        health = self._health
        return health.report(is_urgent=is_urgent, patience_s=patience_s) if health is not None else HealthReport()

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the PCI bus shows of GPUs (port.HealthReporter)."""
        health = self._health
        return health.bus_states(gpus) if health is not None else {}

    def end_health(self, session: NvmlSession | None) -> None:
        """Stop observing health; metering goes on."""
        health, self._health = self._health, None
        if health is not None:
            health.close()
            self.watch(session)

    def begin_metering(self, session: NvmlSession | None, plan: MeterPlan) -> None:
        """Begin to measure (port.Metered)."""
        from dra_driver.hardware.nvidia.metering import NvidiaMeter  # noqa: PLC0415 - only where it is on

        self._meter = NvidiaMeter(plan)
        if self._health is None:
            self.watch(session)

    def meter_report(self) -> MeterReport:
        """Return what was measured last (port.Metered)."""
        meter = self._meter
        return meter.report() if meter is not None else MeterReport()

    def end_metering(self, session: NvmlSession | None) -> None:
        """Stop measuring; health is still observed."""
        self._meter = None
        if self._health is None:
            self.watch(session)

    def watch(self, session: NvmlSession | None) -> None:
        """Start the watch that health and metering need now, in place of the one that the session has."""
        if session is None:
            return
        if session.watch is not None:
            is_replaced = self._health is not None or self._meter is not None
            session.watch.end(WATCH_ENDS_S if is_replaced else 0)
        if self._health is not None:
            session.watch = self._health.begin_session(lambda: self._meter)
        elif self._meter is not None:
            session.watch = HealthWatch(Watched(), lambda: None, meter=lambda: self._meter, polls=False)

    def leave(self, session: NvmlSession) -> None:
        """Record that a session is being closed."""
        if self._health is not None and session.watch is not None:
            self._health.end_session(session.watch)
