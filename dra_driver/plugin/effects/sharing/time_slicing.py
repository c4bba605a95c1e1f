"""Time slices of shared GPUs: set for the first user, and set back to the GPU driver's default after the last one.

In: a GPU and its settings. Out: the GPU's time slice, changed by at most one child process; no process is started if
nothing has to change. An interval that this driver set is known from the ledger and not read back, because only this
driver sets it while claims hold the GPU. An interval that was set by hand before is read once, and only if the default
is requested.
"""

from __future__ import annotations

import logging

from dra_driver.hardware.port import Shareable
from dra_driver.model.errors import HardwareError, SharingError
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice, TimeSlicingSettings
from dra_driver.plugin.effects.sharing.compute_modes import ComputeModes
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_NOTHING_TO_RESTORE = ("hardware.gpu-lost", "hardware.time-slice-unsupported", "hardware.nvidia-smi-missing")


class TimeSlices:
    """The time slices of one node's GPUs."""

    def __init__(self, hardware: object) -> None:
        self._hardware, self._modes = hardware, ComputeModes(hardware)
        self._checked: set[str] = set()  # GPUs on which this process has checked the default

    def check(self, device: SharedDevice, deadline_s: float) -> None:
        """Refuse a GPU whose compute mode admits only one process. Raises: SharingError("sharing.compute-mode")."""
        self._modes.require(device, {ComputeMode.DEFAULT}, "processes can't take turns on it", deadline_s)

    def apply(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Set the time slice of a GPU that no other claim uses yet. Raises: HardwareError, SharingError."""
        if settings.interval is Interval.DEFAULT and self._is_default(device, deadline_s):
            return
        self._set(device, settings.interval, deadline_s)

    def undo(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Restore the GPU driver's default, unless the GPU or the driver is gone.

        Raises: HardwareError.
        """
        if settings.interval is Interval.DEFAULT:
            return
        try:
            self._set(device, Interval.DEFAULT, deadline_s)
        except HardwareError as error:
            if error.code not in _NOTHING_TO_RESTORE:
                raise
            log.warning("time slice not restored", extra=fields(device=device.name, code=error.code, err=str(error)))

    def _is_default(self, device: SharedDevice, deadline_s: float) -> bool:
        """Return whether the GPU has the default interval; a GPU that can't report its interval has no other."""
        if not isinstance(self._hardware, Shareable) or device.gpu_uuid in self._checked:
            return True
        now = self._hardware.time_slice(device, deadline_s)
        self._checked.add(device.gpu_uuid)
        return now in {None, Interval.DEFAULT}

    def _set(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        if not isinstance(self._hardware, Shareable):
            raise SharingError(
                "not-shareable", f"time slices of {device} can't be set by this agent's hardware backend"
            )
        self._hardware.set_time_slice(device, interval, deadline_s)
        log.info("time slice set", extra=fields(device=device.name, status=interval))
