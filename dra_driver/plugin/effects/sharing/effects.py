"""The effects of sharing on a device, whatever the strategy: inspected, then applied, and undone after the last user.

In: a device, its settings, and what `look` found. Out: an MPS channel where there is one. Each call may be repeated,
because it goes by the device's current state. Which claims hold the device is the ledger's business.
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
        """Check that the program that shares devices in this way is there. Raises: SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.require(deadline_s)

    def look(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> Wire:
        """Return what undoing will need, without changing anything. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.look(device, deadline_s)
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
        """Check a device whose effect was applied earlier in this boot: a daemon may have died, a time slice can't."""
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        return None

    def leave(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> None:
        """Clean up after one of several users of a device; this never fails."""
        if isinstance(settings, MpsSettings):
            self._mps.leave(device, deadline_s)

    def undo(self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float) -> None:
        """Restore the device to the state in which it was found. Idempotent. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.undo(device, found, deadline_s)
        else:
            self._slices.undo(device, settings, deadline_s)
