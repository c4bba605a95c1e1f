"""Sharing effects: inspects a device, applies the settings of any strategy to it, and undoes them after the last user.

In: a device, its settings, and what `inspect` found. Out: the MPS channel, under MPS. Each call may be repeated,
because it starts from the device's current state. The ledger records which claims hold the device.
"""

from __future__ import annotations

from dra_driver.model.sharing import MpsSettings, SharedDevice, SharingSettings
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsChannel, MpsSupervisor
from dra_driver.plugin.effects.sharing.mps_device import MpsDevices
from dra_driver.plugin.effects.sharing.time_slicing import TimeSlices


class SharingEffects:
    """The sharing effects on one node's devices."""

    def __init__(self, hardware: object, supervisor: MpsSupervisor | None = None) -> None:
        self._slices, self._mps = TimeSlices(hardware), MpsDevices(hardware, supervisor)
        self.supervisor = supervisor

    def require(self, settings: SharingSettings, deadline_s: float) -> None:
        """Check that the program that these settings need is running. Raises: SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.require(deadline_s)

    def inspect(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> Wire:
        """Return the device's present settings, which undoing will need. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.inspect(device, deadline_s)
        self._slices.check(device, deadline_s)
        return {}

    def apply(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Apply the settings to the device. Idempotent. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        self._slices.apply(device, settings, deadline_s)
        return None

    def join(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Restore an effect that was applied earlier in this boot: an MPS daemon may have died, a time slice can't.

        Return the MPS channel, under MPS. Raises: HardwareError, SharingError.
        """
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        return None

    def leave(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> None:
        """Clean up after one of several users of a device. It never raises an error."""
        if isinstance(settings, MpsSettings):
            self._mps.leave(device, deadline_s)

    def undo(self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float) -> None:
        """Restore the device to the state in which it was found. Idempotent. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.undo(device, found, deadline_s)
        else:
            self._slices.undo(device, settings, deadline_s)
