"""Effects of sharing on a device, whatever the strategy: looked at first, then applied, undone after the last user.

In: a device, settings, and what `look` found. Out: an MPS channel where there is one. Each call may be repeated: it
goes by what the device says. Who holds the device, and whether anybody else does, is for the ledger to know.
"""

from __future__ import annotations

from dra_driver.model.sharing import MpsSettings, SharedDevice, SharingSettings
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsChannel, MpsSupervisor
from dra_driver.plugin.effects.sharing.mps_device import MpsDevices
from dra_driver.plugin.effects.sharing.time_slicing import TimeSlices


class SharingEffects:
    """Effects on one node's devices."""

    def __init__(self, hardware: object, supervisor: MpsSupervisor | None = None) -> None:
        self._slices, self._mps = TimeSlices(hardware), MpsDevices(hardware, supervisor)
        self.supervisor = supervisor

    def require(self, settings: SharingSettings, deadline_s: float) -> None:
        """Check that whoever makes devices so is there. Raises: SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.require(deadline_s)

    def look(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> Wire:
        """Return what undoing will need; nothing is changed. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.look(device, deadline_s)
        self._slices.check(device, deadline_s)
        return {}

    def apply(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Make the device so. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        self._slices.apply(device, settings, deadline_s)
        return None

    def join(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Make sure of a device that was made so before, in this boot: a daemon may have died, a time slice can't."""
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        return None

    def leave(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> None:
        """Clear away what one of several users of a device has left; never fails."""
        if isinstance(settings, MpsSettings):
            self._mps.leave(device, deadline_s)

    def undo(self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float) -> None:
        """Give the device back as it was found. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.undo(device, found, deadline_s)
        else:
            self._slices.undo(device, settings, deadline_s)
