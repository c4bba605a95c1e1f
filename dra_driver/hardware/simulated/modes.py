"""Modes: compute mode and time slice of simulated devices.

In: the desired setting. Out: the setting in force. Both are kept in a file that a reboot empties, just as a real driver
forgets them. Every call about a lost GPU fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.hardware.simulated.state_file import State, StateFile
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice

FILE_NAME = "simulated-modes.json"


class Modes:
    """Modes of one node's devices. `find` returns the profile's GPU with a PCI address, or None where there is none."""

    def __init__(self, folder: Path | None, boot_id: str, find: Callable[[str], SimulatedGpu | None]) -> None:
        self._file = StateFile(folder / FILE_NAME if folder else None, boot_id)
        self._find = find

    def compute_mode(self, device: SharedDevice) -> ComputeMode:
        """Return the compute mode."""
        self._check(device)
        return ComputeMode(self._file.read().get(device.uuid, {}).get("computeMode", ComputeMode.DEFAULT))

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode) -> None:
        """Set the compute mode."""
        self._check(device)
        self._file.change(device.uuid, lambda state: _changed(state, "computeMode", mode, ComputeMode.DEFAULT))

    def time_slice(self, device: SharedDevice) -> Interval:
        """Return the time slice."""
        self._check(device)
        return Interval(self._file.read().get(device.gpu_uuid, {}).get("timeSlice", Interval.DEFAULT))

    def set_time_slice(self, device: SharedDevice, interval: Interval) -> None:
        """Set the time slice."""
        self._check(device)
        self._file.change(device.gpu_uuid, lambda state: _changed(state, "timeSlice", interval, Interval.DEFAULT))

    def _check(self, device: SharedDevice) -> None:
        gpu = self._find(device.pci_address)
        if gpu is None or gpu.is_lost:
            raise HardwareError("gpu-lost", f"GPU {device.pci_address} is lost", retry=Retry.LATER)


def _changed(state: State | None, key: str, value: str, default: str) -> State:
    others = {name: held for name, held in (state or {}).items() if name != key}
    return others if value == default else {**others, key: value}
