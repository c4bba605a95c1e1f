"""The client of the MPS supervisor: it implements the `MpsSupervisor` protocol with one connection for each call.

In: devices and settings. Out: channels, and errors as the supervisor reported them. Never: starts a daemon itself. If
no supervisor runs, every call fails with an error that can be retried and that names the command to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_driver.model.errors import SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import wire
from dra_driver.mps.settings import MpsChannel, RunningDaemon, UnusedDevice
from dra_driver.mps.supervisor_call import call_supervisor


def socket_path(data_dir: Path) -> Path:
    """Return the supervisor's socket for a plugin's data folder."""
    return data_dir / wire.FOLDER_NAME / wire.SOCKET_NAME


class MpsClient:
    """A client of the supervisor at `path`. Any number of threads may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Start the device's daemon if it does not run, set its limits, and return its channel when it is ready.

        Idempotent. Raises: SharingError, as documented at `MpsSupervisor`.
        """
        asked = {"device": wire.device_wire(device), "settings": wire.settings_wire(settings)}
        result = call_supervisor(self._path, "start", asked, deadline_s)
        return MpsChannel(_path_of(result, "pipeDir"), _path_of(result, "shmDir"))

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; do nothing if none runs. Raises: SharingError."""
        call_supervisor(self._path, "stop", {"device": wire.device_wire(device)}, deadline_s)

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        """Remove what ended clients of the device left in their /dev/shm. Raises: SharingError."""
        call_supervisor(self._path, "tidy", {"device": wire.device_wire(device)}, deadline_s)

    def running(self, *, deadline_s: float) -> Sequence[RunningDaemon]:
        """Return the daemons that the supervisor keeps. Raises: SharingError."""
        return tuple(running for running, _ in self._running(deadline_s))

    def stop_unused(self, unused: UnusedDevice, *, deadline_s: float) -> tuple[str, ...]:
        """End the daemons of devices that are `unused`; return the names of those devices.

        Each device is asked about after the daemons have been listed, and its daemon is ended within that context.
        Nothing happens if there is no supervisor. Raises: SharingError if a daemon does not end.
        """
        if not self._path.exists():
            return ()
        ended: list[str] = []
        for _, device in self._running(deadline_s):
            with unused(device) as is_unused:
                if is_unused:
                    self.stop(device, deadline_s=deadline_s)
                    ended.append(device.name)
        return tuple(ended)

    def _running(self, deadline_s: float) -> list[tuple[RunningDaemon, SharedDevice]]:
        kept = []
        for told in call_supervisor(self._path, "list", {}, deadline_s).get("daemons", ()):
            device, settings = wire.device_of(told["device"]), wire.settings_of(told["settings"])
            kept.append((RunningDaemon(device.name, device.uuid, settings, told["isReady"] is True), device))
        return kept


def _path_of(result: Mapping[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str) or not value.startswith("/"):
        raise SharingError("mps-refused", f"the MPS supervisor's answer has no {name}")
    return value
