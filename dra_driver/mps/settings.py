"""The MPS supervisor as the plugin uses it: a device and settings come in, a channel for its clients goes out.

`mps.client` implements this protocol over the supervisor's socket. The settings themselves are in `model.sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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
    "UnusedDevice",
]

# Returns a context that no claim can begin to use the device in, if its value is true.
UnusedDevice = Callable[[SharedDevice], AbstractContextManager[bool]]


@dataclass(frozen=True, slots=True)
class MpsChannel:
    """The folders of one daemon, with their paths on the host; both are bind-mounted into clients' containers."""

    pipe_dir: str
    shm_dir: str


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon that the supervisor keeps: its device's name and UUID, and the settings with which it was started."""

    device: str
    uuid: str
    settings: MpsSettings
    is_ready: bool


class MpsSupervisor(Protocol):
    """The supervisor process, as the agent sees it. Calls may come from any thread. `deadline_s` is in seconds.

    Every error is a SharingError: "sharing.mps-unavailable" (there is no supervisor: retry LATER; the hint names the
    command to run), "sharing.mps-not-ready" (the daemon was not ready in time: retry LATER), "sharing.mps-refused" (the
    daemon or the driver refused; its own message is quoted).
    """

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Start the device's daemon if it does not run, set its limits, and return its channel when it is ready.

        A running daemon is never restarted, because its clients would end: new limits apply to future clients, and a
        change that needs a restart (of multi-user mode, or the removal of a memory limit) is refused with
        "sharing.mps-other-settings". Idempotent. Raises: SharingError.
        """

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; do nothing if none runs. Raises: SharingError."""

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        """Remove what ended clients of the device left in their /dev/shm. Raises: SharingError."""

    def running(self, *, deadline_s: float) -> Sequence[RunningDaemon]:
        """Return all daemons that the supervisor keeps. Raises: SharingError."""

    def stop_unused(self, unused: UnusedDevice, *, deadline_s: float) -> tuple[str, ...]:
        """End the daemons of devices that are `unused`; return the names of those devices.

        Each device is asked about after the daemons have been listed, and its daemon is ended within that context, so
        that no claim can begin to use it in between. Nothing happens if there is no supervisor. Raises: SharingError.
        """
