"""Changes of one GPU: calls within the caller's deadline, modes, and resets.

In: a GPU, found by its UUID and PCI address alone, because those are what a caller still has after a restart; a shared
device and the desired setting. Out: what the library answers or the setting in force, or a HardwareError that explains
what prevents it. A call that outlasts its deadline goes on; a call that has not begun by then is dropped by the worker.

The compute mode and the limits go through NVML. NVML has no call for the time slice or for a reset: nvidia-smi below
the driver root does those, as one child process with fixed arguments and a deadline, and never through a shell.
Source: NVIDIA's NVML API reference (compute modes, nvmlDeviceSetMemoryLimits_v1); nvidia-smi(1), "Compute Policy" and
--gpu-reset: no process may have the GPU open, and persistence mode counts as one.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.discovery import Discovery, LibraryUse
from dra_driver.hardware.nvidia.driver_root import BINARY_FOLDERS, DriverRoot
from dra_driver.hardware.nvidia.instances import WorkerStopped, ended
from dra_driver.hardware.nvidia.queries import UNLIMITED, Handle, NvmlFault
from dra_driver.hardware.nvidia.session import GpuWorker
from dra_driver.hardware.pci import entries_of_process
from dra_driver.hardware.port import Roots

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


PROGRAM = "nvidia-smi"
_MODES = tuple(ComputeMode)  # in the order of NVML_COMPUTEMODE_*
_UNSUPPORTED = re.compile(r"not[ _]supported|unsupported", re.IGNORECASE)
_FORBIDDEN = re.compile(r"insufficient permissions|not have permission|no[ _]permission", re.IGNORECASE)
_INTERVAL = re.compile(rf"time[-\s]?slice\W.*?\b({'|'.join(Interval)})\b", re.IGNORECASE)
_MAX_OUTPUT = 300  # how many characters of the program's output an error quotes


class Modes:
    """Modes of one node's devices; `calls` are made by the GPU's worker."""

    def __init__(self, roots: Roots, calls: GpuCalls) -> None:
        self._roots = roots
        self._calls = calls

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode (port.Shareable)."""
        return self._ask(device, lambda nvml, handle: _MODES[nvml.compute_mode(handle)], deadline_s)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode (port.Shareable)."""
        self._ask(device, lambda nvml, handle: nvml.set_compute_mode(handle, _MODES.index(mode)), deadline_s)

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return the time slice, or None where nvidia-smi does not report it."""
        try:
            output = self._run(device, ("-l",), deadline_s)
        except HardwareError:
            return None
        found = _INTERVAL.search(output)
        return Interval(found[1].capitalize()) if found else None

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set the time slice (port.Shareable)."""
        self._run(device, ("--set-timeslice", str(interval.level)), deadline_s)

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Set, or remove, the limit of a cgroup (port.MemoryLimiting)."""
        maximum = UNLIMITED if limit is None else limit
        try:
            self._on_handle(device, lambda nvml, handle: nvml.set_memory_limit(handle, cgroup, maximum), deadline_s)
        except NvmlFault as fault:
            if fault.name != "NOT_FOUND" or Path(cgroup).is_dir():
                raise _limit_refusal(fault, device, cgroup) from fault

    def _ask(self, device: SharedDevice, work: Callable[[Nvml, Handle], T], deadline_s: float) -> T:
        try:
            return self._on_handle(device, work, deadline_s)
        except NvmlFault as fault:
            raise _refusal(fault, device) from fault

    def _on_handle(self, device: SharedDevice, work: Callable[[Nvml, Handle], T], deadline_s: float) -> T:
        gpu = GpuFacts(device.gpu_uuid, device.pci_address, device.minor, None)

        def on_handle(nvml: Nvml, handle: Handle, _: GpuFacts) -> T:
            return work(nvml, nvml.by_uuid(device.mig_uuid) if device.mig_uuid else handle)

        return self._calls.ask(gpu, on_handle, time.monotonic() + deadline_s)

    def _run(self, device: SharedDevice, arguments: tuple[str, ...], deadline_s: float) -> str:
        """Run nvidia-smi on one GPU and return its output."""
        from dra_driver.hardware import programs  # noqa: PLC0415 - only for resets

        command = (self._program(), "compute-policy", "-i", device.gpu_uuid, *arguments)
        try:
            child = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise HardwareError("nvidia-smi-failed", f"{PROGRAM} can't be run: {exc}", retry=Retry.LATER) from exc
        try:
            printed, _ = child.communicate(timeout=max(0.1, deadline_s))
        except subprocess.TimeoutExpired as late:
            programs.kill(child)  # it may hang in the GPU's driver, where no signal reaches it
            text = f"{PROGRAM} did not end within {deadline_s:.0f} s ({device})"
            raise HardwareError("not-answering", text, retry=Retry.LATER) from late
        output = " ".join(printed.decode("utf-8", "replace").split())
        # Some releases report a refusal as a warning and exit with status 0.
        if child.returncode or _UNSUPPORTED.search(output):
            raise _failure(device, child.returncode, output)
        return output

    def _program(self) -> str:
        """Return the path of nvidia-smi: from our PATH where the driver root is our root, else below that root."""
        from shutil import which  # noqa: PLC0415 - only where time slices are set

        own = None if library.has_own_mount(self._roots) else which(PROGRAM)
        if own is not None:
            return own
        root = DriverRoot(self._roots.driver_mount, self._roots.driver)
        path = root.find_program(PROGRAM, BINARY_FOLDERS)
        resolved = root.resolve(path) if path else None
        if resolved is None:
            raise HardwareError(
                "nvidia-smi-missing",
                f"{PROGRAM} was not found below {self._roots.driver_mount}: time slices can't be set",
                hint="install the driver's utilities in the driver root",
                retry=Retry.LATER,
            )
        return root.here(resolved)

    def _environment(self) -> dict[str, str]:
        """Return an environment in which a program of the driver root finds that root's library.

        The driver root may have another C library than this process.
        """
        nvml = next(library.below_mount(self._roots), None) if library.has_own_mount(self._roots) else None
        return {**os.environ, **({"LD_PRELOAD": nvml} if nvml else {})}


def _refusal(fault: NvmlFault, device: SharedDevice) -> HardwareError:
    if fault.is_absent:
        what = "MIG devices have none of their own on this driver" if device.mig_uuid else "this GPU has none"
        text = f"the compute mode of {device} can't be read or set: {what} ({fault})"
        return HardwareError("compute-mode-unsupported", text)
    if fault.name == "NO_PERMISSION":
        return HardwareError("no-permission", f"compute mode of {device}: {fault}", hint="run the agent privileged")
    if fault.is_lost or fault.name == "NOT_FOUND":
        return HardwareError("gpu-lost", f"{device} no longer exists ({fault})", retry=Retry.LATER)
    return HardwareError("compute-mode-failed", f"compute mode of {device}: {fault}", retry=Retry.LATER)


def _limit_refusal(fault: NvmlFault, device: SharedDevice, cgroup: str) -> HardwareError:
    text = f"the memory of {device} can't be limited for {cgroup}: {fault}"
    if fault.is_absent or fault.name == "NOT_FOUND":
        hint = "this needs release 615 of the driver, cgroup v2 and a GPU that is not in MIG mode"
        return HardwareError("memory-limit-unsupported", text, hint=hint)
    if fault.name == "NO_PERMISSION":
        return HardwareError("no-permission", text, hint="run the agent privileged")
    if fault.is_lost:
        return HardwareError("gpu-lost", text, retry=Retry.LATER)
    return HardwareError("memory-limit-failed", text, retry=Retry.LATER)


def _failure(device: SharedDevice, code: int, output: str) -> HardwareError:
    text = f"output of {PROGRAM}: {output[:_MAX_OUTPUT] or 'none'} (exit status {code})"
    if _UNSUPPORTED.search(output):
        return HardwareError(
            "time-slice-unsupported",
            f"the time slice of {device} can't be set: {text}",
            hint="older and virtual GPUs have no such setting: remove the interval from the config",
        )
    if _FORBIDDEN.search(output):
        return HardwareError("no-permission", f"time slice of {device}: {text}", hint="run the agent privileged")
    return HardwareError("nvidia-smi-failed", f"time slice of {device}: {text}", retry=Retry.LATER)


NVIDIA_MAJOR = 195  # of /dev/nvidia<N> (Linux, devices.txt)
_REFUSED = re.compile(
    r"not supported|unable to reset|could not be reset|in use by|insufficient permissions", re.IGNORECASE
)


def reset_gpus(roots: Roots, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
    """Reset GPUs together. Raises: HardwareError("hardware.reset-failed"), ("hardware.nvidia-smi-missing")."""
    from dra_driver.hardware.programs import run_program  # noqa: PLC0415 - only for resets

    root = DriverRoot(roots.driver_mount, roots.driver)
    path = root.find_program(PROGRAM, BINARY_FOLDERS)
    if path is None:
        text = f"{PROGRAM} was not found below {roots.driver_mount}: no GPU can be reset"
        hint = "install the driver's utilities in the driver root"
        raise HardwareError("nvidia-smi-missing", text, hint=hint, retry=Retry.LATER)
    argv = (path, "--gpu-reset", "-i", ",".join(gpu.uuid for gpu in gpus))
    try:
        end = run_program(argv, timeout_s, root=roots.driver_mount)
    except OSError as error:
        raise HardwareError("reset-failed", f"{PROGRAM} can't be run: {error}", retry=Retry.LATER) from error
    if end.status is None:
        raise HardwareError("reset-failed", f"{PROGRAM} did not end within {timeout_s:.0f} s", retry=Retry.LATER)
    if end.status or _REFUSED.search(end.output):  # some releases report a refusal and exit with status 0
        text = f"{PROGRAM} --gpu-reset printed: {end.output or 'nothing'} (exit status {end.status})"
        raise HardwareError("reset-failed", text, retry=Retry.LATER)


def persistence(calls: GpuCalls, gpu: GpuFacts, deadline_s: float) -> bool | None:
    """Return whether a GPU is in persistence mode; None where it reports none. Raises: HardwareError."""
    end = time.monotonic() + deadline_s
    try:
        return calls.ask(gpu, lambda nvml, handle, _: nvml.persistence_mode(handle), end)
    except NvmlFault as fault:
        if fault.is_absent:
            return None
        raise HardwareError("persistence-failed", f"GPU {gpu.pci_address}: {fault}", retry=Retry.LATER) from fault


def set_persistence(calls: GpuCalls, gpu: GpuFacts, deadline_s: float, *, enabled: bool) -> None:
    """Switch persistence mode. Raises: HardwareError."""
    end = time.monotonic() + deadline_s
    try:
        calls.ask(gpu, lambda nvml, handle, _: nvml.set_persistence_mode(handle, enabled=enabled), end)
    except NvmlFault as fault:
        raise HardwareError("persistence-failed", f"GPU {gpu.pci_address}: {fault}", retry=Retry.LATER) from fault


def processes_with(roots: Roots, gpu: GpuFacts) -> tuple[int, ...]:
    """Return the ids of the processes that have a GPU's device node open, as far as /proc shows them.

    Raises: HardwareError("hardware.gpu-in-use", LATER) if the agent has no descriptors left to look.
    """
    try:
        node = Path(roots.dev, f"nvidia{gpu.minor}").stat()
    except OSError:
        return ()
    processes = (name for name in entries_of_process(roots.proc) if name.isdigit())
    return tuple(sorted(int(name) for name in processes if _has_open(f"{roots.proc}/{name}/fd", node)))


def _has_open(folder: str, node: os.stat_result) -> bool:
    for name in entries_of_process(folder):
        path = f"{folder}/{name}"
        try:
            if "nvidia" in os.readlink(path) and _is_same(os.stat(path), node):  # noqa: PTH115, PTH116 - many of them
                return True
        except OSError:
            continue
    return False


def _is_same(one: os.stat_result, node: os.stat_result) -> bool:
    """Return whether two files are one device; a container has a node of its own, with the same numbers."""
    is_gpu = stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) == NVIDIA_MAJOR
    if is_gpu and stat.S_ISCHR(one.st_mode):
        return one.st_rdev == node.st_rdev
    return (one.st_dev, one.st_ino) == (node.st_dev, node.st_ino)
