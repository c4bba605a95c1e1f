"""Observation: health and metering of the GPUs of each session of the library, by one watch.

Health and metering can be on or off independently. A session is watched while at least one of them is on, by one thread
for both. Their modules are imported only where they are on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.nvidia.session import WATCH_ENDS_S, NvmlSession
from dra_driver.hardware.port import Roots

if TYPE_CHECKING:
    from dra_driver.hardware.nvidia.metering.meter import NvidiaMeter
    from dra_driver.hardware.nvidia.observation.reporter import NvidiaHealth


class Observation:
    """The two observers of a node's GPUs. `session` is the one that is open, None while the library is closed."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._health: NvidiaHealth | None = None
        self._meter: NvidiaMeter | None = None

    def begin_health(self, session: NvmlSession | None, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe the health of the GPUs (port.HealthReporter)."""
        from dra_driver.hardware.nvidia.observation.reporter import NvidiaHealth  # noqa: PLC0415 - only where it is on

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
        from dra_driver.hardware.nvidia.metering.meter import NvidiaMeter  # noqa: PLC0415 - only where it is on

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
            from dra_driver.hardware.nvidia.observation.watch import HealthWatch, Watched  # noqa: PLC0415

            session.watch = HealthWatch(Watched(), lambda: None, meter=lambda: self._meter, polls=False)

    def leave(self, session: NvmlSession) -> None:
        """Record that a session is being closed."""
        if self._health is not None and session.watch is not None:
            self._health.end_session(session.watch)
