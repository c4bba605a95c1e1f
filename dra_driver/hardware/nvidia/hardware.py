"""NVIDIA behind the hardware port: each ability of the port, by the part that has it.

    discovery      what is here, and whether it changed        edits          what a container needs
    observation    health and metering of the open session     partitioning   MIG mode and partitions
    changes        calls about one GPU, modes, resets

A closed vendor opens nothing until the next discovery. In the program that tests a device, libcuda is found in the same
way as NVML. The libraries that it loads by name later are loaded before it from the same folder, because
LD_LIBRARY_PATH would mix the driver root's C library with this process's own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.evidence import BusState, ComputeProgram, HealthReport
from dra_driver.hardware.facts import (
    ChannelFacts,
    CreatedPartition,
    Edits,
    Facts,
    GpuFacts,
    MigProfile,
    PartitionFacts,
    PlacementFacts,
    Problem,
)
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia.changes import GpuCalls, Modes, persistence, processes_with, reset_gpus, set_persistence
from dra_driver.hardware.nvidia.discovery import VENDOR, Discovery, LibraryUse
from dra_driver.hardware.nvidia.observation import Observation
from dra_driver.hardware.nvidia.partitioning import Partitioning
from dra_driver.hardware.port import Fingerprint, Roots


class GpuActions:
    """The abilities of the port that concern single GPUs.

    Args:
        roots: where the node's trees are.
        use: the use of the library.
        discovery: finds out, without the library, whether a GPU was taken out.
        call_timeout_s: a library call in flight for longer makes its GPU "not answering" until it returns.
    """

    def __init__(self, roots: Roots, use: LibraryUse, discovery: Discovery, call_timeout_s: float) -> None:
        self._roots = roots
        self._overdue_s = call_timeout_s
        self._use = use
        self._returned = threading.Event()  # unset from `await_return` until the library was opened again
        self._returned.set()
        self._calls = GpuCalls(use, discovery, call_timeout_s, self._returned)
        self._partitioning = Partitioning(self._calls)

    # -- which processes use it (port.ProcessLister)

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the process ids on a device. Raises: HardwareError when the hardware can't report them."""
        return self._calls.processes(gpu, partition)

    # -- MIG on demand (port.Partitionable)

    def create_partition(
        self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float, *, switches_on: bool = False
    ) -> CreatedPartition:
        """Return the partition of `profile` at `start`, created now unless it exists already."""
        return self._partitioning.create(gpu, profile, start, deadline_s, switches_on=switches_on)

    def placement_now(self, gpu: GpuFacts, profile: MigProfile, start: int) -> PlacementFacts:
        """Return what is at one placement, read from the hardware now."""
        return self._partitioning.placement(gpu, profile, start, self._overdue_s)

    def destroy_partition(
        self,
        gpu: GpuFacts,
        uuid: str,
        deadline_s: float,
        *,
        placement: tuple[int, int] | None = None,
        switches_off: bool = False,
    ) -> bool:
        """Destroy the partition with a UUID, and an unfinished one at `placement`."""
        return self._partitioning.destroy(gpu, uuid, placement, deadline_s, switches_off=switches_off)

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode."""
        self._partitioning.set_mode(gpu, deadline_s, enabled=enabled)

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on, read from the hardware now."""
        return self._partitioning.mode(gpu, deadline_s)

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).partitions

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return the GPU's other instances, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).unusable

    # -- sharing (port.Shareable)

    def _modes(self) -> Modes:
        return Modes(self._roots, self._calls)

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode of a GPU or a MIG device."""
        return self._modes().compute_mode(device, deadline_s)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device."""
        self._modes().set_compute_mode(device, mode, deadline_s)

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return how long a GPU's time slices are."""
        return self._modes().time_slice(device, deadline_s)

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long a GPU's time slices are."""
        self._modes().set_time_slice(device, interval, deadline_s)

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Limit how much of a GPU's memory a cgroup gets (port.MemoryLimiting)."""
        self._modes().limit_memory(device, cgroup, limit, deadline_s)

    # -- resets (port.Resettable)

    def await_return(self) -> None:
        """Let calls about GPUs wait until the library, which is about to be closed, is open again."""
        self._returned.clear()

    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""
        return self._use.is_closed

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the ids of the processes that have a GPU open."""
        return processes_with(self._roots, gpu)

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> bool | None:
        """Return whether a GPU is in persistence mode; None where it reports none."""
        return persistence(self._calls, gpu, deadline_s)

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch persistence mode."""
        set_persistence(self._calls, gpu, deadline_s, enabled=enabled)

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs together, by nvidia-smi below the driver root."""
        reset_gpus(self._roots, gpus, deadline_s)


SONAME = "libcuda.so.1"
# Source: the driver's README, "Installed Components": what compiles PTX.
_HELPERS = ("libnvidia-gpucomp.so.*", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1")
_NO_MPS = "/nonexistent"  # otherwise the test would become a client of an MPS daemon that runs on the host


def cuda_program(roots: Roots, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
    """Return the program that tests a device."""
    found = list(library.candidates(roots, SONAME))
    request = {
        "candidates": found,
        "helpers": _helpers(found[0]),
        "pci": gpu.pci_address,
        "is_thorough": is_thorough,
    }
    return ComputeProgram("dra_driver.hardware.cuda_child", request, _environment((partition or gpu).uuid))


def _helpers(path: str) -> list[str]:
    folder = Path(path).parent
    return [str(one) for name in _HELPERS for one in sorted(folder.glob(name))] if "/" in path else []


def _environment(uuid: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_MPS_PIPE_DIRECTORY": _NO_MPS,
        "LC_ALL": "C.UTF-8",
        **inherited,
    }


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
        from dra_driver.hardware.nvidia.edits.nodes import read_channel  # noqa: PLC0415 - an idle node needs no edits

        return read_channel(self._roots, facts)

    def channel_edits(self) -> Edits:
        """Return the edits for a container with the channel."""
        from dra_driver.hardware.nvidia.edits.nodes import channel_edits  # noqa: PLC0415 - as above

        return channel_edits(self._roots)

    def channel_state(self) -> str | None:
        """Return the state that the host's daemon reports for the channel's domain."""
        from dra_driver.hardware.nvidia.edits.nodes import domain_state  # noqa: PLC0415 - as above

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
        from dra_driver.hardware.nvidia.edits.edits import common_edits  # noqa: PLC0415 - as above

        common, self._left_out = common_edits(self._roots, self._discovery.driver_version)
        return common

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the edits for one device. Raises: HardwareError("hardware.node-missing")."""
        from dra_driver.hardware.nvidia.edits.edits import device_edits  # noqa: PLC0415 - as above

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
        return cuda_program(self._roots, gpu, partition, is_thorough=is_thorough)
