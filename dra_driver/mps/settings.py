"""The protocol of the MPS supervisor as the plugin uses it: a device and settings in, a channel for its clients out.

`mps` implements this protocol over the supervisor's socket. The settings themselves are in `model/sharing`.
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
    """The folders of one daemon, as the container runtime sees them on the host; both are bind-mounted into clients."""

    pipe_dir: str
    shm_dir: str


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """One daemon that the supervisor keeps, with the device's name and UUID and the settings it was started with."""

    device: str
    uuid: str
    settings: MpsSettings
    is_ready: bool


class MpsSupervisor(Protocol):
    """The supervisor process, as seen by the agent. Calls may come from any thread.

    Faults are SharingErrors: "sharing.mps-unavailable" (no supervisor: retry LATER; the hint names the command to run),
    "sharing.mps-not-ready" (the daemon was not ready in time: retry LATER), "sharing.mps-refused" (the daemon or the
    driver refused, with its own words).
    """

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Return the channel of the device's daemon, which is ready on return; start the daemon unless it runs.

        A running daemon is never restarted, as its clients would end: new limits hold for future clients, and
        settings that can't be changed that way ("sharing.mps-other-settings": multi-user mode, removing a memory
        limit) are refused. May be repeated. `deadline_s` is in seconds. Raises: SharingError.
        """

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; do nothing if none runs. Raises: SharingError."""

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        """Remove what ended clients of the device left in their /dev/shm. Raises: SharingError."""

    def running(self, *, deadline_s: float) -> Sequence[RunningDaemon]:
        """Return all daemons. Raises: SharingError."""

    def stop_unnamed(self, named: Callable[[], Collection[str]], *, deadline_s: float) -> tuple[str, ...]:
        """End the daemons of devices whose UUIDs `named` does not return; return the names of those devices.

        `named` is called after the daemons are listed. Nothing happens if there is no supervisor. Raises: SharingError.
        """
