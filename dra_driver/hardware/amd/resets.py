"""Resets: what the kernel driver logged about resets of each GPU, which no file of sysfs keeps.

In: the kernel's records. Out: for each GPU that the log mentions, how its last reset went. A record counts only if it
begins with the driver's name and a PCI address, so that the name of a process, which the driver prints further on in
its lines, is never mistaken for a reset. Everything is forgotten when the driver is loaded again.

Source: Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c (amdgpu_device_gpu_recover), amdgpu_drv.c; a GPU in a hive is
reset together with its peers, for which no line says that it begins.
"""

from __future__ import annotations

import re

from dra_driver.hardware.evidence import DriverReset
from dra_driver.hardware.kernel_records import KernelRecords
from dra_driver.model.machine import boot_time
from dra_driver.model.names import normal_pci_address

NEW_SECONDS = 30.0  # a successful reset that is older than this when the log is first read is not reported
MAX_GPUS = 256  # addresses that are remembered; no machine has so many
_LINE = re.compile(
    r"amdgpu (?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): (?:amdgpu: )?(?:\[drm\] )?(?P<text>.+)"
)
_LOADED = "[drm] amdgpu kernel modesetting enabled"
_MEANINGS = (
    (re.compile(r"GPU reset begin"), DriverReset.UNDER_WAY),
    (re.compile(r"GPU reset\(\d{1,9}\) succeeded"), DriverReset.DONE),
    (re.compile(r"GPU reset\(\d{1,9}\) failed|GPU reset end with ret = -"), DriverReset.FAILED),
    (re.compile(r"device lost from bus"), DriverReset.LOST),
)


class ResetLog:
    """The resets of the node's GPUs since the driver was loaded, as far back as the log reaches."""

    def __init__(self, records: KernelRecords) -> None:
        self._records = records
        self._states: dict[str, DriverReset] = {}

    def read(self) -> dict[str, DriverReset]:
        """Return how the last reset of each GPU went; one that went well is returned once."""
        began = boot_time()
        for _, at, text in self._records.new():
            if text.startswith(_LOADED):
                self._states.clear()
            elif (found := _meaning(text)) is not None:
                gpu, state = found
                if state is DriverReset.DONE and began - at > NEW_SECONDS:
                    self._states.pop(gpu, None)
                elif gpu in self._states or len(self._states) < MAX_GPUS:
                    self._states[gpu] = state
        now = dict(self._states)
        self._states = {gpu: state for gpu, state in now.items() if state is not DriverReset.DONE}
        return now

    @property
    def is_read(self) -> bool:
        """Return whether the log can be read."""
        return not self._records.problem


def _meaning(text: str) -> tuple[str, DriverReset] | None:
    line = _LINE.match(text)
    if line is None:
        return None
    state = next((state for pattern, state in _MEANINGS if pattern.match(line["text"])), None)
    try:
        return None if state is None else (normal_pci_address(line["gpu"]), state)
    except ValueError:
        return None
