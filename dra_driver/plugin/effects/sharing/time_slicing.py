"""Time slices of shared GPUs: set when the first user comes, back to the driver's default when the last one goes.

In: a GPU and its settings. Out: the GPU's time slice, changed by at most one child process; no process is started when
nothing has to change. An interval that this driver set is known from the ledger and not read back, because only this
driver sets it while claims hold the GPU. What was set by hand before is looked up once, and only if the default is
requested.
"""

from __future__ import annotations

import logging

from dra_driver.hardware.port import Shareable
from dra_driver.model.errors import HardwareError, SharingError
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice, TimeSlicingSettings
from dra_driver.plugin.effects.sharing.compute_modes import ComputeModes
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_MOOT = ("hardware.gpu-lost", "hardware.time-slice-unsupported", "hardware.nvidia-smi-missing")


class TimeSlices:
    """The time slices of one node's GPUs."""

    def __init__(self, hardware: object) -> None:
        self._hardware, self._modes = hardware, ComputeModes(hardware)
        self._looked: set[str] = set()  # GPUs on which this process has checked the default

    def check(self, device: SharedDevice, deadline_s: float) -> None:
        """Refuse a GPU on which processes can't take turns. Raises: SharingError("sharing.compute-mode")."""
        self._modes.require(device, {ComputeMode.DEFAULT}, "processes can't take turns on it", deadline_s)

    def apply(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Set the time slice of a GPU that no other claim uses yet. Raises: HardwareError, SharingError."""
        if settings.interval is Interval.DEFAULT and self._is_default(device, deadline_s):
            return
        self._set(device, settings.interval, deadline_s)

    def undo(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Restore the driver's default; nothing is left to restore when the GPU or the driver is gone.

        Raises: HardwareError.
        """
        if settings.interval is Interval.DEFAULT:
            return
        try:
            self._set(device, Interval.DEFAULT, deadline_s)
        except HardwareError as error:
            if error.code not in _MOOT:
                raise
            log.warning("time slice not restored", extra=fields(device=device.name, code=error.code, err=str(error)))

    def _is_default(self, device: SharedDevice, deadline_s: float) -> bool:
        """Return whether the GPU has the default already; a GPU that doesn't report its interval has no other."""
        if not isinstance(self._hardware, Shareable) or device.gpu_uuid in self._looked:
            return True
        now = self._hardware.time_slice(device, deadline_s)
        self._looked.add(device.gpu_uuid)
        return now in {None, Interval.DEFAULT}

    def _set(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        if not isinstance(self._hardware, Shareable):
            raise SharingError(
                "not-shareable", f"time slices of {device} can't be set by this agent's hardware backend"
            )
        self._hardware.set_time_slice(device, interval, deadline_s)
        log.info("time slice set", extra=fields(device=device.name, status=interval))
