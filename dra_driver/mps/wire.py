"""The messages between the agent (`mps.client`) and the supervisor: one JSON object on one line each way.

A request is {"version", "command", …}, an answer {"version", "result"} or {"version", "error"}. A field or version that
this build does not know is refused, because a setting must not be silently ignored. The supervisor is upgraded by hand,
so it may be older than the agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.model.errors import DriverError, Retry, SharingError
from dra_driver.model.records import Key, RecordForm
from dra_driver.model.sharing import MpsSettings, SharedDevice

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
