"""Resetting NVIDIA's GPUs: nvidia-smi below the driver root, persistence mode, and who has a GPU open.

In: GPUs. Out: an effect, or a HardwareError with the output of the program. NVML has no call that resets a GPU.
Source: nvidia-smi(1), --gpu-reset: no process may have the GPU open, and persistence mode counts as one.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.installed_names import BINARY_FOLDERS
from dra_driver.hardware.nvidia.gpu_calls import GpuCalls
from dra_driver.hardware.nvidia.nvml.fault import NvmlFault
from dra_driver.hardware.port import Roots
from dra_driver.hardware.programs import run_program
from dra_driver.model.errors import HardwareError, Retry

PROGRAM = "nvidia-smi"
NVIDIA_MAJOR = 195  # of /dev/nvidia<N> (Linux, devices.txt)
_REFUSED = re.compile(
    r"not supported|unable to reset|could not be reset|in use by|insufficient permissions", re.IGNORECASE
)


def reset_gpus(roots: Roots, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
    """Reset GPUs together. Raises: HardwareError("hardware.reset-failed"), ("hardware.nvidia-smi-missing")."""
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
    """Return the ids of the processes that have a GPU's device node open, as far as /proc shows them."""
    try:
        node = Path(roots.dev, f"nvidia{gpu.minor}").stat()
    except OSError:
        return ()
    processes = (one for one in Path(roots.proc).iterdir() if one.name.isdigit())
    return tuple(sorted(int(one.name) for one in processes if _has_open(one / "fd", node)))


def _has_open(folder: Path, node: os.stat_result) -> bool:
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - names are enough
    except OSError:  # the process has ended, or this one may not look at it
        return False
    for name in descriptors:
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
