"""MPS client: the supervisor's socket behind the `MpsSupervisor` protocol, one connection for each call.

In: devices and settings. Out: channels, and faults as the supervisor told them. Never: a daemon started here; without a
supervisor every call fails, can be tried again, and says what to run.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_driver.model.errors import DriverError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import wire
from dra_driver.sharing.settings import MpsChannel, RunningDaemon

_HINT = (
    "start `dra-driver mps` on the node; in the chart it is a DaemonSet of its own, switched on where MPS is configured"
)
_SLACK_S = 1.0  # what the supervisor may take beyond the deadline that it was given, to undo what it began
_LEAST_S = 0.05


def socket_path(data_dir: Path) -> Path:
    """Give the supervisor's socket for a plugin's data folder."""
    return data_dir / wire.FOLDER_NAME / wire.SOCKET_NAME


class MpsClient:
    """Speaks to the supervisor at `path`; any number of threads may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Give the channel of the device's daemon, ready on return; one that runs gets the settings' limits.

        Raises: SharingError.
        """
        asked = {"device": wire.device_wire(device), "settings": wire.settings_wire(settings)}
        result = self._call("start", asked, deadline_s)
        return MpsChannel(_path_of(result, "pipeDir"), _path_of(result, "shmDir"))

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; one that does not run is fine. Raises: SharingError."""
        self._call("stop", {"device": wire.device_wire(device)}, deadline_s)

    def running(self, *, deadline_s: float) -> Sequence[RunningDaemon]:
        """List the daemons that the supervisor keeps. Raises: SharingError."""
        return tuple(running for running, _ in self._running(deadline_s))

    def stop_unnamed(self, named: Callable[[], Collection[str]], *, deadline_s: float) -> tuple[str, ...]:
        """End the daemons of devices (by UUID) that `named` does not give; gives the names of those devices.

        What is named is asked after the daemons are listed: one whose effect was written meanwhile is spared. Nothing
        happens where there is no supervisor. Raises: SharingError when one does not end.
        """
        if not self._path.exists():
            return ()
        kept = self._running(deadline_s)
        spared = named() if kept else ()
        strays = [device for _, device in kept if device.uuid not in spared]
        for device in strays:
            self.stop(device, deadline_s=deadline_s)
        return tuple(device.name for device in strays)

    def _running(self, deadline_s: float) -> list[tuple[RunningDaemon, SharedDevice]]:
        answer = self._call("list", {}, deadline_s, with_deadline=False).get("daemons")
        kept = []
        for told in answer if isinstance(answer, list) else ():
            device, settings = wire.device_of(told["device"]), wire.settings_of(told["settings"])
            kept.append((RunningDaemon(device.name, device.uuid, settings, told["isReady"] is True), device))
        return kept

    def _call(
        self, command: str, asked: Mapping[str, Any], deadline_s: float, *, with_deadline: bool = True
    ) -> dict[str, Any]:
        deadline_s = max(_LEAST_S, deadline_s)
        extra = {"deadlineS": deadline_s} if with_deadline else {}
        line = wire.line_of({"version": wire.VERSION, "command": command, **asked, **extra})
        try:
            answer = wire.object_of(_exchange(self._path, line, time.monotonic() + deadline_s + _SLACK_S))
        except TimeoutError as exc:
            text = f"the MPS supervisor did not answer {command!r} within {deadline_s:g} s"
            raise SharingError("mps-not-ready", text, retry=Retry.LATER) from exc
        except OSError as exc:
            raise _unavailable(self._path, exc) from exc
        if "error" in answer:
            raise wire.error_of(answer["error"])
        result = answer.get("result")
        return result if isinstance(result, dict) else {}


def _exchange(path: Path, line: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:

        def wait() -> None:
            connection.settimeout(max(_LEAST_S, deadline - time.monotonic()))

        wait()
        connection.connect(os.fspath(path))
        connection.sendall(line)
        answer = b""
        while not answer.endswith(b"\n"):
            wait()
            part = connection.recv(65536)
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            answer += part
        return answer


def _unavailable(path: Path, exc: OSError) -> DriverError:
    return SharingError(
        "mps-unavailable",
        f"no MPS supervisor answers at {path}: {exc.strerror or exc}",
        hint=_HINT,
        retry=Retry.LATER,
    )


def _path_of(result: Mapping[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str) or not value.startswith("/"):
        raise SharingError("mps-refused", f"the MPS supervisor's answer has no {name}")
    return value
