"""What the plugin asks of the MPS supervisor: a device and settings go in, a channel for its clients comes out.

`mps` speaks to the supervisor's socket behind this protocol. The settings themselves are `model/sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from dra_driver.model.sharing import MpsSettings, SharedDevice, SharingSettings, TimeSlicingSettings

__all__ = [
    "MpsChannel",
    "MpsSettings",
    "MpsSupervisor",
    "RunningDaemon",
    "SharedDevice",
    "SharingSettings",
    "TimeSlicingSettings",
]


@dataclass(frozen=True, slots=True)
class MpsChannel:
    """Folders of one daemon, as the container runtime sees them on the host; both are bind-mounted into clients."""

    pipe_dir: str
    shm_dir: str


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """One daemon that the supervisor keeps: by the device's name and UUID, with what it was started with."""

    device: str
    uuid: str
    settings: MpsSettings
    is_ready: bool


class MpsSupervisor(Protocol):
    """The supervisor process, from the agent's side. Calls may come from any thread.

    Faults are SharingErrors: "sharing.mps-unavailable" (no supervisor: retry LATER, the hint says how to run it),
    "sharing.mps-not-ready" (the daemon was not ready in time: retry LATER), "sharing.mps-refused" (the daemon or the
    driver said no, with its words).
    """

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Return the channel of the device's daemon, which is ready on return; started now unless it runs already.

        One that runs is never restarted under its clients: new limits hold for clients to come, and what can't be
        changed so ("sharing.mps-other-settings": multi-user mode, no memory limit any more) is refused.
        Raises: SharingError.
        """

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; one that does not run is fine. Raises: SharingError."""

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        """Remove what ended clients of the device left in their /dev/shm. Raises: SharingError."""

    def running(self, *, deadline_s: float) -> Sequence[RunningDaemon]:
        """List the daemons. Raises: SharingError."""

    def stop_unnamed(self, named: Callable[[], Collection[str]], *, deadline_s: float) -> tuple[str, ...]:
        """End the daemons of devices (by UUID) that `named`, asked after the listing, does not give; names those.

        Nothing happens where there is no supervisor. Raises: SharingError.
        """
