"""The health of simulated GPUs, reported from the profile as a real vendor would report it.

In: the profile's GPUs, each time a report is requested. Out: reports. An Xid is reported once: those that were added to
a GPU's list since the last report are new. In the first report all of them are new; they have the time at which the
file was written, so that after a restart they are recognized as those that were reported before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping

from dra_driver.hardware.evidence import BusState, HealthReport, Source, Vitals, XidReport
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.model.machine import boot_time
from dra_driver.model.stamp import Stamp

POLL_SECONDS = 10.0


class SimulatedHealthReporter:
    """A reporter that remembers what it has reported. For use by a single thread."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._reported: dict[str, int] = {}  # how many Xids of each GPU were reported
        self._stamp: Hashable = None
        self._polled_at = float("-inf")
        self._hanging_since: float | None = None

    def report(
        self, facts: Facts, gpus: Mapping[str, SimulatedGpu], stamp: Stamp | None, *, is_urgent: bool
    ) -> HealthReport:
        """Return what is new; vitals only when a round of polling is due or the file changed."""
        now = self._clock()
        is_first = self._stamp is None and stamp is not None
        age = max(0.0, time.time() - stamp.mtime_ns / 1e9) if is_first and stamp else 0.0
        xids = tuple(self._xids(gpus, now - age))
        hangs = any(gpu.health.hangs for gpu in gpus.values())
        self._hanging_since = (self._hanging_since or now) if hangs else None
        if self._hanging_since is not None:
            self._stamp = stamp
            return HealthReport(xids, silent_s=now - self._hanging_since)
        is_due = is_urgent or bool(xids) or stamp != self._stamp or now - self._polled_at >= POLL_SECONDS
        if not is_due:
            return HealthReport()
        self._stamp, self._polled_at = stamp, now
        uuids = {gpu.pci_address: gpu.uuid for gpu in facts.gpus}
        return HealthReport(xids, tuple(_vitals(gpu, uuids.get(gpu.pci_address, ""), now) for gpu in gpus.values()))

    def _xids(self, gpus: Mapping[str, SimulatedGpu], at: float) -> Iterator[XidReport]:
        for address, gpu in gpus.items():
            for index in range(self._reported.get(address, 0), len(gpu.health.xids)):
                xid = gpu.health.xids[index]
                yield XidReport(address, xid.code, at + index / 1e6, Source.EVENT, xid.gi_id)
            self._reported[address] = len(gpu.health.xids)


def _vitals(gpu: SimulatedGpu, uuid: str, now: float) -> Vitals:
    health = gpu.health
    if gpu.is_lost or health.bus is not BusState.HERE:
        return Vitals(gpu.pci_address, now, is_lost=True)
    links = gpu.links_up if gpu.links_up is not None else gpu.model.nvlinks or 0
    return Vitals(
        gpu.pci_address,
        now,
        uuid,
        recovery_action=health.recovery_action,
        ecc_uncorrectable=health.ecc_uncorrectable,
        sram_threshold_exceeded=health.sram_threshold_exceeded,
        remap_pending=health.remap_pending,
        remap_failed=health.remap_failed,
        thermal_margin=health.thermal_margin,
        slowdown_margin=health.slowdown_margin,
        clock_reasons=health.clock_reasons,
        links=tuple(link not in health.links_down for link in range(links)),
        fabric_summary=health.fabric_summary,
        pcie_replays=health.pcie_replays,
    )
