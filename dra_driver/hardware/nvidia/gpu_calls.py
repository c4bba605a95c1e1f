"""Calls about one GPU: made by the GPU's own worker, within the caller's deadline.

In: a GPU, found by its UUID and PCI address alone, because those are what a caller still has after a restart. Out: what
the library answers, or a HardwareError that explains why it does not. A call that outlasts its deadline goes on; a call
that has not begun by then is dropped by the worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia.discovery import Discovery
from dra_driver.hardware.nvidia.gpu_worker import GpuWorker
from dra_driver.hardware.nvidia.library_use import LibraryUse
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.worker import WorkerStopped, ended
from dra_driver.model.errors import HardwareError, Retry

T = TypeVar("T")
Work = Callable[[Nvml, Handle, GpuFacts], T]  # called with the library, the GPU's handle, and its facts as last read


class GpuCalls:
    """The calls about single GPUs.

    Args:
        use: the use of the library, whose session may not be open.
        discovery: finds out, without the library, whether a GPU was taken out.
        overdue_s: a call in flight for longer, in seconds, makes its GPU "not answering".
        returned: while it is not set, the library will be opened again soon, and calls wait for that.
    """

    def __init__(self, use: LibraryUse, discovery: Discovery, overdue_s: float, returned: threading.Event) -> None:
        self._use, self._discovery = use, discovery
        self._overdue_s = overdue_s
        self._returned = returned

    def ask(self, gpu: GpuFacts, work: Work[T], end: float) -> T:
        """Return the result of `work`, done by the GPU's worker before `end` (monotonic seconds).

        Raises: NvmlFault, HardwareError.
        """
        if not self._returned.is_set():
            self._returned.wait(max(0.0, end - time.monotonic()))
        worker, known = self.find(gpu)
        job = worker.worker.submit(lambda: work(worker.nvml, worker.find(gpu.uuid), known))
        # Mostly the worker, which is woken at once, has done the job by now.
        if not job.done() and (worker.is_overdue(self._overdue_s) or not ended(job, end - time.monotonic())):
            job.cancel()
            call = worker.worker.waits_for()[0]
            raise HardwareError(
                "not-answering", f"GPU {gpu.pci_address} does not answer {call or 'in time'}", retry=Retry.LATER
            )
        try:
            return job.result()
        except WorkerStopped as stopped:
            raise _not_open(gpu) from stopped

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the process ids on a device (port.ProcessLister). It does not wait while the library is closed."""
        worker = self._worker_at(gpu.pci_address)
        if worker is None:
            raise HardwareError("gpu-unknown", f"GPU {gpu.pci_address} is not known to the driver", retry=Retry.LATER)
        uuid, nvml = (partition or gpu).uuid, worker.nvml
        job = worker.worker.submit(lambda: nvml.processes(nvml.by_uuid(uuid)))
        if worker.is_overdue(self._overdue_s) or not ended(job, self._overdue_s):
            job.cancel()
            raise HardwareError("gpu-not-answering", f"GPU {gpu.pci_address} does not answer", retry=Retry.LATER)
        try:
            return tuple(sorted(job.result()))
        except NvmlFault as fault:
            raise HardwareError(
                "processes-unreadable", f"the processes on GPU {gpu.pci_address} can't be listed: {fault}"
            ) from fault

    def await_library(self, timeout_s: float) -> None:
        """Wait while the library is closed for a moment."""
        self._returned.wait(timeout_s)

    def _worker_at(self, address: str) -> GpuWorker | None:
        session = self._use.session
        gpus = session.gpus if session is not None else []
        return next((gpu for gpu in gpus if gpu.last is not None and gpu.last.address == address), None)

    def find(self, gpu: GpuFacts) -> tuple[GpuWorker, GpuFacts]:
        """Return the GPU's worker, and its facts as last read.

        Raises: HardwareError; "hardware.gpu-lost" only where that is certain, because the GPU's partitions are then
        gone too.
        """
        session = self._use.session
        if session is None:
            raise _lost(gpu) if self._discovery.is_gone(gpu) else _not_open(gpu)
        found = session.worker_of(gpu.uuid, gpu.pci_address)
        if found is not None:
            return found
        address, workers = gpu.pci_address, session.gpus
        for worker in workers:
            last = worker.last
            if last is None or last.address != address:
                continue
            if last.facts is not None and last.facts.uuid == gpu.uuid:
                return worker, last.facts
            if last.facts is None and not last.is_lost:
                raise HardwareError("not-answering", f"GPU {gpu.pci_address} can't be read", retry=Retry.LATER)
            break
        else:
            if not workers or any(worker.last is None or worker.last.address is None for worker in workers):
                raise HardwareError("not-answering", f"GPU {gpu.pci_address} has not answered", retry=Retry.LATER)
        raise _lost(gpu)


def _lost(gpu: GpuFacts) -> HardwareError:
    return HardwareError("gpu-lost", f"GPU {gpu.pci_address} ({gpu.uuid}) is lost", retry=Retry.LATER)


def _not_open(gpu: GpuFacts) -> HardwareError:
    return HardwareError(
        "no-library", f"GPU {gpu.pci_address} is not known to the driver at the moment", retry=Retry.LATER
    )
