"""MPS device: sets the compute mode of a device under MPS and starts its daemon, from the first user to the last.

In: a device, its settings, and the compute mode that was found before anything was changed. Out: the channel of its
daemon. While the daemon runs, the compute mode keeps all other processes off the device. MIG devices have no compute
mode on most drivers, and need none, because nothing else is given the device. The supervisor runs the daemon.
Source: NVIDIA, "Multi-Process Service" (EXCLUSIVE_PROCESS is recommended, not needed).
"""

from __future__ import annotations

import logging
import time

from dra_driver.model.errors import HardwareError, Retry, SharingError
from dra_driver.model.sharing import ComputeMode, MpsSettings, SharedDevice
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsChannel, MpsSupervisor
from dra_driver.plugin.effects.sharing.compute_modes import ComputeModes
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

READY_SECONDS = 10.0  # a daemon is usually ready within 1 s, but giving up early would delay the pod by a minute
TIDY_SECONDS = 2.0
_MODE = "computeMode"  # the ledger's key of the mode that was found
_GONE = "hardware.gpu-lost"


class MpsDevices:
    """MPS on one node's devices. If there is no supervisor, every start is refused."""

    def __init__(self, hardware: object, supervisor: MpsSupervisor | None) -> None:
        self._modes, self._supervisor = ComputeModes(hardware), supervisor

    def inspect(self, device: SharedDevice, deadline_s: float) -> Wire:
        """Return the compute mode, which undoing will need, and refuse what can't work. Nothing is changed.

        Raises: SharingError("sharing.mps-unavailable", "sharing.compute-mode"), HardwareError.
        """
        self._require_supervisor().running(deadline_s=deadline_s)
        allowed = {ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS}
        mode = self._modes.require(device, allowed, "an MPS server can't use it", deadline_s)
        return {_MODE: mode}

    def apply(self, device: SharedDevice, settings: MpsSettings, found: Wire, deadline_s: float) -> MpsChannel:
        """Start the daemon unless it runs, and set the compute mode so that no other process can use the device.

        Raises: SharingError, HardwareError.
        """
        end = time.monotonic() + deadline_s
        if found.get(_MODE) == ComputeMode.DEFAULT:
            self._modes.set(device, ComputeMode.EXCLUSIVE_PROCESS, end - time.monotonic())
        left_s = max(0.1, min(READY_SECONDS, end - time.monotonic()))
        return self._require_supervisor().start(device, settings, deadline_s=left_s)

    def leave(self, device: SharedDevice, deadline_s: float) -> None:
        """Remove what a user left in the shared /dev/shm; if that fails, it is removed when the next user starts."""
        try:
            self._require_supervisor().tidy(device, deadline_s=min(TIDY_SECONDS, deadline_s))
        except SharingError as error:
            log.info(
                "leftover shared memory not removed", extra=fields(device=device.name, code=error.code, err=str(error))
            )

    def undo(self, device: SharedDevice, found: Wire, deadline_s: float) -> None:
        """End the daemon, then restore the device's compute mode. Raises: SharingError, HardwareError."""
        end = time.monotonic() + deadline_s
        self._require_supervisor().stop(device, deadline_s=deadline_s)
        if found.get(_MODE) != ComputeMode.DEFAULT:
            return
        try:
            self._modes.set(device, ComputeMode.DEFAULT, max(0.1, end - time.monotonic()))
        except HardwareError as error:
            if error.code != _GONE:
                raise
            log.warning("compute mode not restored", extra=fields(device=device.name, err=str(error)))

    def require(self, deadline_s: float) -> None:
        """Check that the supervisor answers. Raises: SharingError."""
        self._require_supervisor().running(deadline_s=deadline_s)

    def _require_supervisor(self) -> MpsSupervisor:
        if self._supervisor is None:
            raise SharingError(
                "mps-unavailable",
                "no MPS supervisor is configured on this node",
                hint="run `dra-driver mps` on the node, with the same --kubelet-plugins-directory-path as the agent",
                retry=Retry.LATER,
            )
        return self._supervisor
