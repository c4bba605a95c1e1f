"""GpuWorker: one GPU of an open library, asked by a thread of its own.

In: an index and roots. Out: readings and probes, each within the time that the caller allows. A call that hangs blocks
this thread and nothing else, and the GPU counts as not answering until the call returns.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.reading.gpu import GpuReading, read_gpu
from dra_driver.hardware.nvidia.reading.links import read_fabric
from dra_driver.hardware.nvidia.reading.partitions import read_mig_uuids
from dra_driver.hardware.nvidia.reading.profiles import KnownProfiles
from dra_driver.hardware.nvidia.worker import Worker, ended
from dra_driver.hardware.port import Roots


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """A probe of a GPU: `mig` changes with its mode and partitions, `rest` when it is lost or exchanged."""

    rest: Hashable
    mig: Hashable = None


def probe_gpu(nvml: Nvml, index: int, *, with_fabric: bool) -> GpuProbe:
    """Return what changes when the GPU is lost, exchanged, re-partitioned or joins its fabric, in a few calls."""
    try:
        gpu = nvml.gpu(index)
        rest = (nvml.uuid(gpu), _size(nvml, gpu), _fabric(nvml, gpu) if with_fabric else None)
        return GpuProbe(rest, _mig(nvml, gpu))
    except NvmlFault as fault:
        return GpuProbe(fault.name)


def _size(nvml: Nvml, gpu: Handle) -> Hashable:
    try:
        return nvml.memory_bytes(gpu)  # this call asks the GPU itself, so it fails if the GPU is lost
    except NvmlFault as fault:
        return fault.name


def _mig(nvml: Nvml, gpu: Handle) -> Hashable:
    try:
        mode = nvml.mig_mode(gpu)
        return mode, read_mig_uuids(nvml, gpu) if mode[0] else ()
    except NvmlFault as fault:
        return fault.name


def _fabric(nvml: Nvml, gpu: Handle) -> Hashable:
    try:
        return read_fabric(nvml, gpu)
    except NvmlFault as fault:
        return fault.name


class GpuWorker:
    """One GPU of a session: its thread, its last reading, and its last probe."""

    def __init__(self, index: int, roots: Roots) -> None:
        self.index = index
        self._roots = roots
        self.profiles = KnownProfiles()
        self.worker = Worker(f"gpu-{index}")
        self.nvml = Nvml(self.worker.mark)
        self.last: GpuReading | None = None
        self._reading: Future[GpuReading] | None = None
        self._probe: Future[GpuProbe] | None = None
        self._probed = GpuProbe(None)
        self._found: tuple[str, Handle] | None = None  # UUID and handle

    def start_reading(self) -> None:
        """Start a new reading, unless one is under way."""
        if self._reading is None:
            read = partial(read_gpu, self.nvml, self.index, self._roots, self.profiles)
            self._reading = self.worker.submit(read, is_preemptible=True)

    def find(self, uuid: str) -> Handle:
        """Return the GPU's handle, looked up by index, because a look-up by UUID may have to wait for all other GPUs.

        It is valid until the GPU is read again: the library looks at the bus only when it is initialised, and reports a
        GPU that has left the bus since then as lost. Raises: NvmlFault; NOT_FOUND where another GPU has the index now.
        """
        found = self._found
        if found is None or found[0] != uuid:
            gpu = self.nvml.gpu(self.index)
            if self.nvml.uuid(gpu) != uuid:
                raise NvmlFault("nvmlDeviceGetHandleByIndex", "NOT_FOUND")
            found = self._found = uuid, gpu
        return found[1]

    def finish_reading(self, timeout_s: float) -> GpuReading | None:
        """Return the reading that was started, or None if it does not end in time."""
        reading = self._reading
        if reading is None or not ended(reading, timeout_s):
            return None
        self._reading = self._found = None
        self.last = reading.result()
        return self.last

    @property
    def is_reading(self) -> bool:
        """Return whether a reading is under way whose result has not been taken."""
        return self._reading is not None

    def start_probe(self) -> None:
        """Start a new probe, unless one is under way."""
        if self._probe is None:
            with_fabric = self.last is not None and self.last.links.is_fabric_unknown
            probe = partial(probe_gpu, self.nvml, self.index, with_fabric=with_fabric)
            self._probe = self.worker.submit(probe, is_preemptible=True)

    def finish_probe(self, timeout_s: float, overdue_s: float) -> GpuProbe:
        """Return what the probe found (or, if it is late, the previous one), and whether the GPU answers at all."""
        probe, is_overdue = self._probe, self.is_overdue(overdue_s)
        if probe is not None and ended(probe, 0 if is_overdue else timeout_s):
            self._probe = None
            self._probed = probe.result()
        reading = self._reading
        answers = (self.is_overdue(overdue_s), reading is not None and reading.done())
        return GpuProbe((self._probed.rest, *answers), self._probed.mig)

    @property
    def address(self) -> str:
        """Return the PCI address that was read last, or the index of a GPU that was never read."""
        return (self.last and self.last.address) or f"index {self.index}"

    def is_overdue(self, overdue_s: float) -> bool:
        """Return whether a call has been in flight for longer than allowed."""
        return self.worker.waits_for()[1] >= overdue_s
