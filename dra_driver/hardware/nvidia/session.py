"""The library in use: opened, asked about each GPU by a worker of its own, and released again.

In: roots and deadlines. Out: readings and probes of GPUs, each within the time that the caller allows. A GPU whose call
hangs blocks its own worker and nothing else, and counts as not answering until the call returns. Opening, counting and
closing also have a worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dra_driver.hardware.facts import GpuFacts, Problem
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.gpu_reading import GpuReading, read_fabric, read_gpu
from dra_driver.hardware.nvidia.instances import Worker, ended
from dra_driver.hardware.nvidia.mig_reading import KnownProfiles, read_mig_uuids
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault
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


WATCH_ENDS_S = 2.0  # a watch uses the library for at most half a second more, unless a call hangs


@dataclass(frozen=True, slots=True)
class DriverState:
    """What the library reports about the node as a whole. None for a version that it does not report."""

    count: int
    driver_version: str | None
    cuda_version: int | None
    problems: tuple[Problem, ...] = ()


def read_driver_state(nvml: Nvml) -> DriverState:
    """Read the number of GPUs and the versions. Raises: NvmlFault when the GPUs can't be counted."""
    problems: list[Problem] = []

    def note(fact: str, fault: NvmlFault) -> None:
        if not fault.is_absent:
            problems.append(Problem("hardware.fact-unreadable", "node", f"no {fact}: {fault}"))

    count = nvml.count()
    driver_version = cuda_version = None
    try:
        driver_version = nvml.driver_version()
    except NvmlFault as fault:
        note("driver version", fault)
    try:
        cuda_version = nvml.cuda_driver_version()
    except NvmlFault as fault:
        note("CUDA version", fault)
    return DriverState(count, driver_version, cuda_version, tuple(problems))


class SessionWatch(Protocol):
    """What observes the GPUs of a session, in a thread of its own."""

    def end(self, timeout_s: float) -> bool:
        """Stop using the library; return whether the thread has stopped within the time."""
        ...


class NvmlSession:
    """An initialised library and the workers of its GPUs."""

    def __init__(self, roots: Roots, driver: Worker, bus: Hashable) -> None:
        self._roots = roots
        self._driver = driver
        self._nvml = Nvml(driver.mark)
        self._gpus: list[GpuWorker] = []
        self._by_address: dict[str, GpuWorker] = {}  # filled by calls; each entry is checked before it is used
        self._growing = threading.Lock()  # discovery and probe may count the GPUs at the same time
        self._counting: Future[DriverState] | None = None
        self._closing: Future[None] | None = None
        self.watch: SessionWatch | None = None
        self.bus = bus  # the bus as it was when the library was initialised, since the library looks only then
        self.state = DriverState(0, None, None)

    def read_state(self, timeout_s: float) -> DriverState | None:
        """Count GPUs and read versions; return None when the library does not answer in time.

        Raises: NvmlFault when it answers with an error.
        """
        counting = self._counting
        if counting is None:
            counting = self._counting = self._driver.submit(partial(read_driver_state, self._nvml))
        if not ended(counting, timeout_s):
            return None
        self._counting = None
        state = counting.result()
        with self._growing:
            while len(self._gpus) < state.count:
                self._gpus.append(GpuWorker(len(self._gpus), self._roots))
        self.state = state
        return state

    @property
    def gpus(self) -> list[GpuWorker]:
        """Return the workers of the GPUs that the last count found."""
        return self._gpus[: self.state.count]

    def worker_of(self, uuid: str, address: str) -> tuple[GpuWorker, GpuFacts] | None:
        """Return a GPU's worker and its facts as last read; None where that needs a search among all workers."""
        worker = self._by_address.get(address)
        if worker is None or worker.index >= self.state.count:
            self._by_address = {gpu.address: gpu for gpu in reversed(self.gpus)}
            worker = self._by_address.get(address)
        last = worker.last if worker is not None else None
        if worker is None or last is None or last.address != address or last.facts is None or last.facts.uuid != uuid:
            return None
        return worker, last.facts

    def read_gpus(self, patience_s: float, overdue_s: float) -> None:
        """Read all GPUs at the same time.

        Wait `patience_s` seconds for slow ones, and up to `overdue_s` seconds as long as none has answered.
        """
        began = time.monotonic()
        for gpu in self.gpus:
            gpu.start_reading()
        waiting = [gpu for gpu in self.gpus if not gpu.is_overdue(overdue_s)]
        is_first = True
        while waiting:
            left_s = began + (patience_s if is_first else overdue_s) - time.monotonic()
            slice_s = left_s if is_first else min(left_s, 0.05)
            deadline = time.monotonic() + slice_s
            slow = [gpu for gpu in waiting if gpu.finish_reading(deadline - time.monotonic()) is None]
            if len(slow) < len(self.gpus) or (left_s <= 0 and not is_first):
                return
            is_first, waiting = False, slow

    def probe(self, timeout_s: float, overdue_s: float) -> tuple[Hashable, tuple[tuple[str, Hashable], ...]]:
        """Probe all GPUs at the same time, within `timeout_s` seconds in total.

        Return what changes with the node and its GPUs, and by PCI address what changes with each GPU's partitions.
        """
        deadline = time.monotonic() + timeout_s
        gpus = self.gpus
        for gpu in gpus:
            gpu.start_probe()
        try:
            counted: Hashable = self.read_state(deadline - time.monotonic())
        except NvmlFault as fault:
            counted = fault.name
        found = [(gpu.address, gpu.finish_probe(deadline - time.monotonic(), overdue_s)) for gpu in gpus]
        rest = (counted or self.state, tuple(probe.rest for _, probe in found))
        return rest, tuple((address, probe.mig) for address, probe in found)

    def has_calls_in_flight(self) -> bool:
        """Return whether a library call has not returned; the library must not be shut down while that is so."""
        return any(gpu.worker.is_busy for gpu in self._gpus)

    def close(self, timeout_s: float) -> bool:
        """Shut the library down and end the workers; return whether that is done.

        It is not done while a GPU's call is in flight or while the shutdown itself hangs; the caller then has to call
        again.
        """
        if self._closing is None:
            is_watched = self.watch is not None and not self.watch.end(min(timeout_s, WATCH_ENDS_S))
            if is_watched or self.has_calls_in_flight():
                return False
            for gpu in self._gpus:
                gpu.worker.stop()
            timeout_s = 0 if self._driver.is_busy else timeout_s
            self._closing = self._driver.submit(self._shut_down)
            return ended(self._closing, timeout_s)
        return self._closing.done()

    def _shut_down(self) -> None:
        try:
            self._nvml.shutdown()
        except NvmlFault:
            return  # the library had not been initialised, or the driver is gone: nothing is held
