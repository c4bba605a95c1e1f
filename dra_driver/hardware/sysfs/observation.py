"""Observation: the health and the measurements of GPUs from sysfs. The same for every vendor without a library.

In: roots, and a vendor's readers. Out: what the hardware port's abilities for health and metering return. The readers
are imported when they are first needed: a node without health and telemetry keeps none of them in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dra_driver.hardware.bus import bus_states
from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.metered import MeterPlan, MeterReport, Reading
from dra_driver.hardware.port import Roots

if TYPE_CHECKING:
    from dra_driver.hardware.sysfs.meter import SysfsMeter
    from dra_driver.hardware.sysfs.watch import SysfsWatch, VitalsSource


class SysfsObservation(ABC):
    """GPUs that are observed by reading sysfs; a vendor's hardware derives from it.

    Args:
        roots: where the node's trees are.
    """

    vendor: str
    drivers: tuple[str, ...]  # the kernel drivers that make the vendor's GPUs usable

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._watch: SysfsWatch | None = None
        self._meter: SysfsMeter | None = None

    @abstractmethod
    def _vitals_source(self) -> VitalsSource:
        """Return what reads the health of every GPU."""

    @abstractmethod
    def _figures_reader(self) -> Callable[[], Iterable[Reading]]:
        """Return what measures every GPU, which may remember the figures of its last reading."""

    # -- health (port.HealthReporter)

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:  # noqa: ARG002 - no Xids here
        """Begin to observe the health of the GPUs."""
        from dra_driver.hardware.sysfs.watch import SysfsWatch  # noqa: PLC0415 - only where it is on

        self.end_health()
        self._watch = SysfsWatch(self.vendor, self._vitals_source(), notify)

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call."""
        watch = self._watch
        return watch.report(is_urgent=is_urgent, patience_s=patience_s) if watch is not None else HealthReport()

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the PCI bus shows of GPUs."""
        return bus_states(self._roots, gpus, self.drivers) if self._watch is not None else {}

    def end_health(self) -> None:
        """Stop observing."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    # -- metering (port.Metered)

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure."""
        from dra_driver.hardware.sysfs.meter import SysfsMeter  # noqa: PLC0415 - only where it is on

        self.end_metering()
        self._meter = SysfsMeter(self.vendor, plan, self._figures_reader())

    def meter_report(self) -> MeterReport:
        """Return the newest reading of each GPU."""
        return self._meter.report() if self._meter is not None else MeterReport()

    def end_metering(self) -> None:
        """Stop measuring."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.close()
