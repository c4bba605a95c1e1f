"""NVIDIA behind the hardware port: each ability of the port, by the part that has it.

    discovery      what is here, and whether it changed        library_use    the library, opened and released
    edits          what a container needs                      compute        the program that tests a device
    observation    health and metering of the open session     actions        what is asked and changed of one GPU

A closed vendor opens nothing until the next discovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.facts import (
    ChannelFacts,
    Facts,
    GpuFacts,
    PartitionFacts,
    Problem,
)
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.nvidia.actions import GpuActions
from dra_driver.hardware.nvidia.discovery import Discovery
from dra_driver.hardware.nvidia.library_use import LibraryUse
from dra_driver.hardware.nvidia.node_facts import VENDOR
from dra_driver.hardware.nvidia.observation.observation import Observation
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.model.edits import Edits
from dra_driver.telemetry.logs import fields

if TYPE_CHECKING:
    from dra_driver.hardware.compute.program import ComputeProgram

log = logging.getLogger(__name__)


class NvidiaHardware(GpuActions):
    """NVIDIA's GPUs on this node.

    Args:
        roots: where the node's trees are.
        call_timeout_s: a library call in flight for longer makes its GPU "not answering" until it returns.
        patience_s: how long a discovery waits for slow GPUs once another has answered. A slow GPU keeps its last
            facts until its call is overdue.
    """

    vendor = VENDOR
    needs_privilege = True  # to reset a GPU

    def __init__(self, roots: Roots, *, call_timeout_s: float = 10.0, patience_s: float = 1.0) -> None:
        self._observation = Observation(roots)
        use = LibraryUse(roots, call_timeout_s, self._observation)
        self._discovery = Discovery(roots, use, overdue_s=call_timeout_s, patience_s=min(patience_s, call_timeout_s))
        super().__init__(roots, use, self._discovery, call_timeout_s)
        self._left_out: tuple[str, ...] = ()

    # -- IMEX channels (port.ChannelOffering)

    def channel(self, facts: Facts) -> ChannelFacts | Problem | None:
        """Return the IMEX channel of a node with these GPUs."""
        from dra_driver.hardware.nvidia.edits.imex import read_channel  # noqa: PLC0415 - only where a channel is wanted

        return read_channel(self._roots, facts)

    def channel_edits(self) -> Edits:
        """Return the edits for a container with the channel."""
        from dra_driver.hardware.nvidia.edits.imex import channel_edits  # noqa: PLC0415 - only where a channel is wanted

        return channel_edits(self._roots)

    def channel_state(self) -> str | None:
        """Return the state that the host's daemon reports for the channel's domain."""
        from dra_driver.hardware.nvidia.edits.imex import domain_state  # noqa: PLC0415 - only where a channel is wanted

        return domain_state(self._roots)

    # -- what is here

    def is_present(self) -> bool:
        """Return whether there is a GPU on the PCI bus or, where no bus is visible, traces of a driver."""
        return self._discovery.is_present()

    def discover(self) -> Facts:
        """Read everything and return it.

        Raises: HardwareError("hardware.driver-changed", retry LATER): a new process must replace this one.
        """
        with self._use.lock:
            try:
                return self._discovery.discover()
            finally:
                self._returned.set()

    def driver_changed(self) -> bool:
        """Return whether the driver was replaced since this process first used its library (reads files only)."""
        return self._use.is_outdated

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else. Never opens the library."""
        return self._discovery.fingerprint()

    def close(self) -> None:
        """Release the library and every device node, so that the driver can be unloaded."""
        if not self._use.lock.acquire(timeout=self._overdue_s):
            log.warning("library not released because discovery hangs", extra=fields(vendor=self.vendor))
            return
        try:
            self._discovery.end()
        finally:
            self._use.lock.release()

    # -- what a container needs

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs."""
        from dra_driver.hardware.nvidia.edits.edits import common_edits  # noqa: PLC0415

        common, self._left_out = common_edits(self._roots, self._discovery.driver_version)
        return common

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the edits for one device. Raises: HardwareError("hardware.node-missing")."""
        from dra_driver.hardware.nvidia.edits.edits import device_edits  # noqa: PLC0415

        return device_edits(self._roots, gpu, partition)

    def edit_problems(self) -> tuple[str, ...]:
        """Return what the common edits leave out now and why; nothing where there is no GPU."""
        if self.is_present():
            self.common_edits()
        return self._left_out

    # -- health (port.HealthReporter)

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe the health of the GPUs, from the next discovery on if the library is not open yet."""
        with self._use.lock:
            self._observation.begin_health(self._use.session, notify, log_position=log_position)

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call."""
        return self._observation.health(is_urgent=is_urgent, patience_s=patience_s)

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the PCI bus shows of GPUs."""
        return self._observation.bus_states(gpus)

    def end_health(self) -> None:
        """Stop observing."""
        with self._use.lock:
            self._observation.end_health(self._use.session)

    # -- metering (port.Metered)

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure, from the next discovery on if the library is not open yet."""
        with self._use.lock:
            self._observation.begin_metering(self._use.session, plan)

    def meter_report(self) -> MeterReport:
        """Return what was measured last."""
        return self._observation.meter_report()

    def end_metering(self) -> None:
        """Stop measuring."""
        with self._use.lock:
            self._observation.end_metering(self._use.session)

    # -- tests of devices (port.ComputeTested)

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that tests a device."""
        from dra_driver.hardware.nvidia.compute import cuda_program  # noqa: PLC0415 - only where devices are tested

        return cuda_program(self._roots, gpu, partition, is_thorough=is_thorough)
