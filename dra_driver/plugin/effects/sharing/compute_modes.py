"""Compute modes: reads, checks and sets the compute modes of shared devices.

In: a device. Out: its mode, or None if it has none (MIG devices on most drivers, virtual GPUs) or it can't be read.
Source: NVIDIA, "Multi-Process Service" (EXCLUSIVE_PROCESS is recommended for MPS, not needed).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dra_driver.hardware.port import Shareable
from dra_driver.model.errors import HardwareError, Retry, SharingError
from dra_driver.model.sharing import ComputeMode, SharedDevice
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_NONE = "hardware.compute-mode-unsupported"


class ComputeModes:
    """The compute modes of one node's devices."""

    def __init__(self, hardware: object) -> None:
        self._hardware = hardware

    def read(self, device: SharedDevice, deadline_s: float) -> ComputeMode | None:
        """Return the compute mode, or None if the device has none. Raises: HardwareError."""
        if not isinstance(self._hardware, Shareable):
            return None
        try:
            return self._hardware.compute_mode(device, deadline_s)
        except HardwareError as error:
            if error.code != _NONE:
                raise
            return None

    def require(
        self, device: SharedDevice, allowed: Collection[ComputeMode], what: str, deadline_s: float
    ) -> ComputeMode | None:
        """Return the compute mode, which must be one of `allowed`; `what` is the consequence of others, for the error.

        Raises: SharingError("sharing.compute-mode"), HardwareError.
        """
        mode = self.read(device, deadline_s)
        if mode is not None and mode not in allowed:
            raise SharingError(
                "compute-mode",
                f"{device} has compute mode {mode}: {what}",
                hint="an administrator set it; nvidia-smi -c DEFAULT restores the default",
                retry=Retry.LATER,
            )
        return mode

    def set(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode unless it is set already. It is no error if a MIG device refuses the change.

        Raises: HardwareError.
        """
        if not isinstance(self._hardware, Shareable) or self.read(device, deadline_s) is mode:
            return
        try:
            self._hardware.set_compute_mode(device, mode, deadline_s)
        except HardwareError as error:
            if error.code != _NONE or device.mig_uuid is None:
                raise
            log.info("MIG device keeps its compute mode", extra=fields(device=device.name, err=str(error)))
        else:
            log.info("compute mode set", extra=fields(device=device.name, status=mode))
