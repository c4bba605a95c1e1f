"""Modes: compute mode, time slice and memory limits of NVIDIA GPUs, and of MIG devices as far as they have them.

In: a shared device and the desired setting. Out: the setting in force, or a HardwareError that explains what prevents
it. The compute mode and the limits go through NVML. NVML has no call for the time slice: nvidia-smi sets it, as one
child process with fixed arguments and a deadline, and never through a shell.
Source: NVIDIA's NVML API reference (compute modes, nvmlDeviceSetMemoryLimits_v1); nvidia-smi, "Compute Policy".
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dra_driver.hardware import programs
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.installed_names import BINARY_FOLDERS
from dra_driver.hardware.nvidia.gpu_calls import GpuCalls
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.nvml.settings import UNLIMITED
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice

T = TypeVar("T")

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
