"""Commands to one running control daemon, and the meaning of its answers.

In: a device's folder and settings. Out: the daemon's answers. Every limit is read back. Before each command the kernel
is asked which process listens on the socket. Never: a command with text from a claim; commands consist of numbers and
the words written here.
Source: NVIDIA Multi-Process Service, nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import re
import time

from dra_driver.base.errors import Retry, SharingError
from dra_driver.base.wire import MpsSettings, SharedDevice
from dra_driver.node.mps import launch
from dra_driver.node.mps.daemon_folder import DaemonFolder
from dra_driver.node.mps.launch import ControlProgram, ProgramExit
from dra_driver.node.mps.processes import ProcessIdentity

COMMAND_S = 5.0  # how long one command may take; the real daemon answers in milliseconds
_POLL_S = 0.02
_MIN_S = 0.05  # how long one run of the program may take if the deadline has already passed
_MIB, _GIB = 1 << 20, 1 << 30
# The daemon has one device, with index 0. Limits by UUID are known to be ignored (NVIDIA/k8s-device-plugin#572).
_DEVICE = 0
_MAX_SERVERS = 64  # a daemon has one server, or one for each user whose clients still run
_MAX_LIST = 1024  # characters
_PID = re.compile(r"[0-9]{1,10}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MG])i?B?\b", re.IGNORECASE)
_COMPLAINT = re.compile(r"error|fail|invalid|unrecogni[sz]ed|unknown|cannot|not supported|denied|refus", re.IGNORECASE)


class ControlClient:
    """Commands to the daemon of one folder, and to no other process that listens there.

    `deadline` is the time at which to give up, in monotonic seconds.
    """

    def __init__(
        self, program: ControlProgram, folder: DaemonFolder, process: ProcessIdentity, deadline: float
    ) -> None:
        self._program, self._folder, self._process, self._deadline = program, folder, process, deadline

    def left(self) -> float:
        """Return the seconds left until the deadline; 0 if it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def ask(self, command: str) -> str:
        """Return the daemon's answer to one command.

        Raises: SharingError("sharing.mps-not-ready", LATER) if it does not answer, and "sharing.mps-refused" if it
        refuses.
        """
        outcome = self._try(command)
        if outcome.status is None:
            why = f": {outcome.output}" if outcome.output else " in time"
            raise SharingError(
                "mps-not-ready",
                f"the MPS control daemon does not answer {command!r}{why}",
                hint=f"see {self._folder.log}/control.log on the node",
                retry=Retry.LATER,
            )
        if outcome.status != 0 or _COMPLAINT.search(outcome.output):
            raise SharingError(
                "mps-refused",
                f"the MPS control daemon refuses {command!r}: {outcome.output[:300] or f'status {outcome.status}'}",
                retry=Retry.LATER,
            )
        return outcome.output

    def wait_ready(self) -> None:
        """Wait until the daemon answers. Raises: SharingError("sharing.mps-not-ready", LATER)."""
        while True:
            outcome = self._try("get_default_active_thread_percentage")
            if outcome.status == 0:
                return
            if self.left() <= _POLL_S or not self._process.is_alive():
                answer = f" ({outcome.output[:200]})" if outcome.output else ""
                raise SharingError(
                    "mps-not-ready",
                    f"the MPS control daemon is not ready in time{answer}",
                    hint=f"see {self._folder.log}/control.log on the node",
                    retry=Retry.LATER,
                )
            time.sleep(_POLL_S)

    def set_limits(self, device: SharedDevice, settings: MpsSettings) -> None:
        """Set the limits of future servers, and of future clients of running servers. Raises: SharingError.

        Running clients keep the limits that they started with: the daemon has no command to change those.
        """
        servers = self.servers()
        percentage = settings.active_thread_percentage
        self._set_percentage(100 if percentage is None else percentage, servers)
        if (memory := memory_limit(device, settings)) is not None:
            self._set_memory(memory, servers)

    def servers(self) -> list[int]:
        """Return the pids of the running servers, as the daemon lists them. Raises: SharingError."""
        answer = self.ask("get_server_list")
        found = [int(word) for word in answer.split() if _PID.fullmatch(word)]
        if len(found) > _MAX_SERVERS or len(answer) > _MAX_LIST:
            text = f"the MPS control daemon answers get_server_list with {answer[:80]!r}, which is no list of servers"
            raise SharingError("mps-refused", text, retry=Retry.LATER)
        return found

    def server_status(self, pid: int) -> str:
        """Return the state of one server, as the daemon reports it. Raises: SharingError."""
        return self.ask(f"get_server_status {pid}")

    def quit(self, seconds: int) -> bool:
        """Ask the daemon to end, and to end its servers after `seconds`. Return whether it accepted."""
        outcome = self._try(f"quit -t {seconds}")
        if outcome.status:
            outcome = self._try("quit")
        return outcome.status == 0

    def _set_percentage(self, percentage: int, servers: list[int]) -> None:
        self.ask(f"set_default_active_thread_percentage {percentage}")
        answer = self.ask("get_default_active_thread_percentage")
        if (found := _NUMBER.search(answer)) and float(found[0]) != percentage:
            raise _ignored("a default active thread percentage", str(percentage), answer)
        for pid in servers:
            self.ask(f"set_active_thread_percentage {pid} {percentage}")

    def _set_memory(self, limit: int, servers: list[int]) -> None:
        text = f"{limit // _MIB}M"
        self.ask(f"set_default_device_pinned_mem_limit {_DEVICE} {text}")
        answer = self.ask(f"get_default_device_pinned_mem_limit {_DEVICE}")
        if not may_be(limit, answer):
            raise _ignored("a default pinned memory limit", text, answer)
        for pid in servers:
            self.ask(f"set_device_pinned_mem_limit {pid} {_DEVICE} {text}")

    def _try(self, command: str) -> ProgramExit:
        """Run a command, unless a process other than our daemon listens; then the outcome names that process."""
        if fault := launch.fault(self._folder.control, self._process):
            return ProgramExit(None, fault)
        seconds = max(_MIN_S, min(COMMAND_S, self.left()))
        return launch.ask(self._program, self._folder, command, seconds=seconds)


def memory_limit(device: SharedDevice, settings: MpsSettings) -> int | None:
    """Return the limit in bytes for each client on a device: the device's, else the general one; None for no limit."""
    limits = settings.per_device_limits
    for name in (device.uuid, device.gpu_uuid, str(_DEVICE)):
        if name in limits:
            return limits[name]
    return settings.pinned_memory_limit


def may_be(limit: int, output: str) -> bool:
    """Return whether a size that was read back can mean the limit in bytes.

    Drivers format it in different ways, newer ones in whole GiB, rounded down. True if `output` contains no size.

    >>> may_be(6 << 30, "6G"), may_be(4606 << 20, "4G"), may_be(512 << 20, "512M"), may_be(6 << 30, "0M")
    (True, True, True, False)
    """
    found = _SIZE.search(output)
    if not found:
        return True
    shown = float(found[1]) * (_GIB if found[2].upper() == "G" else _MIB)
    rounding = _GIB if found[2].upper() == "G" else _MIB
    return shown <= limit < shown + rounding


def _ignored(what: str, wanted: str, found: str) -> SharingError:
    return SharingError(
        "mps-refused",
        f"the MPS control daemon accepted {what} of {wanted} but reports {found[:80]!r}",
        hint="the GPU may not support limits (Volta and newer do)",
    )
