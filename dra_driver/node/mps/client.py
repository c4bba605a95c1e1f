"""The messages between the agent (`mps.client`) and the supervisor: one JSON object on one line each way.

A request is {"version", "command", …}, an answer {"version", "result"} or {"version", "error"}. A field or version that
this build does not know is refused, because a setting must not be silently ignored. The supervisor is upgraded by hand,
so it may be older than the agent.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base.errors import DriverError, Retry, SharingError
from dra_driver.base.wire import Key, MpsSettings, RecordForm, SharedDevice

VERSION = 1
LINE_BYTES = 64 * 1024  # the longest message, including its newline
SOCKET_NAME = "supervisor.sock"
FOLDER_NAME = "mps"  # below the plugin's data folder

_COMMANDS = {
    "start": frozenset({"device", "settings", "deadlineS"}),
    "stop": frozenset({"device", "deadlineS"}),
    "status": frozenset({"device", "deadlineS"}),
    "tidy": frozenset({"device", "deadlineS"}),
    "list": frozenset(),
}
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z]{8}(-[0-9A-Za-z]{4}){3}-[0-9A-Za-z]{12}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # the names of devices that the API server accepts
_PCI = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?")
_DEADLINE_MAX_S = 60.0
_MAX_MEMORY = (1 << 63) - 1  # the most that a config may ask for
_MAX_LIMITS = 64


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def object_of(line: bytes) -> dict[str, Any]:
    """Read one line. Raises: SharingError("sharing.mps-bad-request")."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise _bad("not a JSON object on one line") from exc
    if not isinstance(message, dict):
        raise _bad("not a JSON object on one line")
    if message.get("version") != VERSION or isinstance(message["version"], bool):
        raise SharingError(
            "mps-bad-request",
            f"MPS messages of version {message.get('version')!r} are not supported, only {VERSION}",
            hint="the agent and the MPS supervisor are of different releases: upgrade the older one",
        )
    return message


class MpsCommand:
    """One checked request. `device` and `settings` are None if the command has none."""

    __slots__ = ("command", "deadline_s", "device", "settings")

    def __init__(
        self, command: str, device: SharedDevice | None, settings: MpsSettings | None, deadline_s: float
    ) -> None:
        self.command, self.device, self.settings, self.deadline_s = command, device, settings, deadline_s


def request_of(line: bytes) -> MpsCommand:
    """Read and check a request. Raises: SharingError("sharing.mps-bad-request"), which names what is wrong."""
    message = object_of(line)
    command = message.pop("command", None)
    message.pop("version")
    wanted = _COMMANDS.get(command) if isinstance(command, str) else None
    if wanted is None:
        raise _bad(f"command {_short(command)} is not one of {', '.join(_COMMANDS)}")
    _check_fields(str(command), message, wanted)
    return MpsCommand(
        str(command),
        device_of(message["device"]) if "device" in wanted else None,
        settings_of(message["settings"]) if "settings" in wanted else None,
        _number(message, "deadlineS", _DEADLINE_MAX_S) if "deadlineS" in wanted else 0.0,
    )


def device_wire(device: SharedDevice) -> dict[str, Any]:
    """Return the wire form of a device."""
    return _DEVICE.write(device)


def device_of(value: Any) -> SharedDevice:
    """Read a device. Raises: SharingError("sharing.mps-bad-request")."""
    return _DEVICE.read(_object("device", value, _DEVICE.keys))


def settings_wire(settings: MpsSettings) -> dict[str, Any]:
    """Return the wire form of settings."""
    return _SETTINGS.write(settings)


def settings_of(value: Any) -> MpsSettings:
    """Read settings. Raises: SharingError("sharing.mps-bad-request")."""
    return _SETTINGS.read(_object("settings", value, _SETTINGS.keys))


def error_wire(error: DriverError) -> dict[str, Any]:
    """Return the wire form of an error."""
    return {
        "code": error.code.partition(".")[2],
        "message": error.message,
        "hint": error.hint,
        "retry": error.retry.value,
    }


def error_of(value: Any) -> SharingError:
    """Read an error; missing fields get general values."""
    fields = value if isinstance(value, dict) else {}
    retry = fields.get("retry")
    return SharingError(
        str(fields.get("code", "mps-refused")),
        str(fields.get("message", "the MPS supervisor gave no reason")),
        hint=str(fields.get("hint", "")),
        retry=Retry(retry) if retry in {kind.value for kind in Retry} else Retry.LATER,
    )


def _bad(what: str) -> SharingError:
    return SharingError("mps-bad-request", f"MPS request refused: {what}")


def _short(value: object) -> str:
    return repr(value)[:80]


def _object(what: str, value: Any, names: frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(f"{what} is not an object")
    _check_fields(what, value, names)
    return value


def _check_fields(what: str, value: Mapping[str, Any], names: frozenset[str]) -> None:
    if missing := sorted(names - value.keys()):
        raise _bad(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - names):
        raise _bad(f"{what} with {_short(unknown)}, which this supervisor does not know")


def _text(name: str, pattern: re.Pattern[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _bad(f"{name} {_short(value)} has the wrong form")
        return value

    return read


def _whole(name: str, maximum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
            raise _bad(f"{name} {_short(value)} is not a whole number from 0 to {maximum}")
        return value

    return read


def _flag(name: str) -> Callable[[Any], bool]:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _bad(f"{name} is neither true nor false")
        return value

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _limits(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_LIMITS:
        raise _bad("perDeviceLimits does not map devices to numbers of bytes")
    return {device: _whole(f"perDeviceLimits.{device}", _MAX_MEMORY)(limit) for device, limit in value.items()}


def _number(fields: Mapping[str, Any], name: str, maximum: float) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= maximum:
        raise _bad(f"{name} {_short(value)} is not a number of seconds up to {maximum:g}")
    return float(value)


_DEVICE = RecordForm(
    SharedDevice,
    name=Key("name", read=_text("name", _NAME)),
    gpu_uuid=Key("gpuUUID", read=_text("gpuUUID", _UUID)),
    minor=Key("minor", read=_whole("minor", 1 << 20)),
    pci_address=Key("pciAddress", read=_text("pciAddress", _PCI)),
    mig_uuid=Key("migUUID", read=_optional(_text("migUUID", _UUID))),
)
_SETTINGS = RecordForm(
    MpsSettings,
    active_thread_percentage=Key("activeThreadPercentage", read=_optional(_whole("activeThreadPercentage", 100))),
    pinned_memory_limit=Key("pinnedMemoryLimit", read=_optional(_whole("pinnedMemoryLimit", _MAX_MEMORY))),
    per_device_limits=Key("perDeviceLimits", dict, _limits),
    multi_user=Key("multiUser", read=_flag("multiUser")),
    across_namespaces=Key("acrossNamespaces", read=_flag("acrossNamespaces")),
)


# The MPS supervisor as the plugin uses it: a device and settings come in, a channel for its clients goes out.

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


# Send one request to a supervisor and read its answer, over a connection of its own.

_HINT = "start `dra-driver mps` on the node; in the chart it is a separate DaemonSet, enabled when MPS is configured"
_SLACK_S = 1.0  # how much longer than its deadline the supervisor may take, because it undoes what it began
_MIN_S = 0.05
_RESTART_S = 5.0
_POLL_S = 0.1


def call_supervisor(path: Path, command: str, asked: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Send a command to the supervisor at `path` and return its result. `deadline_s` is in seconds.

    Raises: SharingError: "sharing.mps-unavailable" (LATER) if no supervisor runs, "sharing.mps-not-ready" (LATER) if it
    does not answer in time, or the error that the supervisor reports.
    """
    deadline_s = max(_MIN_S, deadline_s)
    extra = {} if command == "list" else {"deadlineS": deadline_s}
    line = line_of({"version": VERSION, "command": command, **asked, **extra})
    try:
        answer = object_of(_exchange_patiently(path, line, time.monotonic() + deadline_s))
    except TimeoutError as exc:
        text = f"the MPS supervisor did not answer {command!r} within {deadline_s:g} s"
        raise SharingError("mps-not-ready", text, retry=Retry.LATER) from exc
    except OSError as exc:
        text = f"no MPS supervisor answers at {path}: {exc.strerror or exc}"
        raise SharingError("mps-unavailable", text, hint=_HINT, retry=Retry.LATER) from exc
    if "error" in answer:
        raise error_of(answer["error"])
    result = answer.get("result")
    return result if isinstance(result, dict) else {}


def _exchange_patiently(path: Path, line: bytes, deadline: float) -> bytes:
    """Send a line and return the answer. If the supervisor's folder exists, wait for a supervisor that is restarting.

    Every command may be repeated, so a command that was interrupted is sent again.
    """
    gives_up = min(deadline, time.monotonic() + _RESTART_S)
    while True:
        try:
            return _exchange(path, line, deadline + _SLACK_S)
        except TimeoutError:
            raise
        except OSError:
            if time.monotonic() + _POLL_S > gives_up or not path.parent.is_dir():
                raise
        time.sleep(_POLL_S)


def _exchange(path: Path, line: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:

        def wait() -> None:
            connection.settimeout(max(_MIN_S, deadline - time.monotonic()))

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


# The client of the MPS supervisor: it implements the `MpsSupervisor` protocol with one connection for each call.


def socket_path(data_dir: Path) -> Path:
    """Return the supervisor's socket for a plugin's data folder."""
    return data_dir / FOLDER_NAME / SOCKET_NAME


class MpsClient:
    """A client of the supervisor at `path`. Any number of threads may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        """Start the device's daemon if it does not run, set its limits, and return its channel when it is ready.

        Idempotent. Raises: SharingError, as documented at `MpsSupervisor`.
        """
        asked = {"device": device_wire(device), "settings": settings_wire(settings)}
        result = call_supervisor(self._path, "start", asked, deadline_s)
        return MpsChannel(_path_of(result, "pipeDir"), _path_of(result, "shmDir"))

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        """End the device's daemon and remove its folders; do nothing if none runs. Raises: SharingError."""
        call_supervisor(self._path, "stop", {"device": device_wire(device)}, deadline_s)

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        """Remove what ended clients of the device left in their /dev/shm. Raises: SharingError."""
        call_supervisor(self._path, "tidy", {"device": device_wire(device)}, deadline_s)

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
            device, settings = device_of(told["device"]), settings_of(told["settings"])
            kept.append((RunningDaemon(device.name, device.uuid, settings, told["isReady"] is True), device))
        return kept


def _path_of(result: Mapping[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str) or not value.startswith("/"):
        raise SharingError("mps-refused", f"the MPS supervisor's answer has no {name}")
    return value
