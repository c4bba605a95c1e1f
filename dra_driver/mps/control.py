"""Control: what is said to one running control daemon, command by command, and what its answers mean.

In: a device's folder and settings. Out: the daemon's words. Every limit is read back. Before each command the kernel is
asked who listens on the socket. Never: a command whose words come from a claim; only numbers and what is listed here.
Source: NVIDIA Multi-Process Service, nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import re
import time

from dra_driver.model.errors import Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import launch, peer
from dra_driver.mps.folder import Folder
from dra_driver.mps.launch import ControlProgram, ProgramExit
from dra_driver.mps.processes import ProcessIdentity

COMMAND_S = 5.0  # one command; the real daemon answers in milliseconds
_POLL_S = 0.02
_LEAST_S = 0.05  # for one run of the program, at a deadline that has passed
_MIB, _GIB = 1 << 20, 1 << 30
# The daemon has one device, with index 0. Limits by UUID were seen to be ignored (NVIDIA/k8s-device-plugin#572).
_DEVICE = 0
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MG])i?B?\b", re.IGNORECASE)
_COMPLAINT = re.compile(r"error|fail|invalid|unrecogni[sz]ed|unknown|cannot|not supported|denied|refus", re.IGNORECASE)


class Control:
    """Speaks to one daemon in its folder, and to nobody else who listens there.

    `deadline` is the monotonic time at which to give up.
    """

    def __init__(self, program: ControlProgram, folder: Folder, process: ProcessIdentity, deadline: float) -> None:
        self._program, self._folder, self._process, self._deadline = program, folder, process, deadline

    def left(self) -> float:
        """Return the seconds that are left until the deadline, 0 when it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def ask(self, command: str) -> str:
        """Return the daemon's answer to one command.

        Raises: SharingError("sharing.mps-not-ready", LATER) without an answer, ("sharing.mps-refused") for a no.
        """
        outcome = self._try(command)
        if outcome.status is None:
            why = f": {outcome.words}" if outcome.words else " in time"
            raise SharingError(
                "mps-not-ready",
                f"the MPS control daemon does not answer {command!r}{why}",
                hint=f"look at {self._folder.log}/control.log on the node",
                retry=Retry.LATER,
            )
        if outcome.status != 0 or _COMPLAINT.search(outcome.words):
            raise SharingError(
                "mps-refused",
                f"the MPS control daemon refuses {command!r}: {outcome.words[:300] or f'status {outcome.status}'}",
                retry=Retry.LATER,
            )
        return outcome.words

    def wait_ready(self) -> None:
        """Wait until the daemon answers at all. Raises: SharingError("sharing.mps-not-ready", LATER)."""
        while True:
            outcome = self._try("get_default_active_thread_percentage")
            if outcome.status == 0:
                return
            if self.left() <= _POLL_S or not self._process.is_alive():
                said = f" ({outcome.words[:200]})" if outcome.words else ""
                raise SharingError(
                    "mps-not-ready",
                    f"the MPS control daemon is not ready in time{said}",
                    hint=f"look at {self._folder.log}/control.log on the node",
                    retry=Retry.LATER,
                )
            time.sleep(_POLL_S)

    def set_limits(self, device: SharedDevice, settings: MpsSettings) -> None:
        """Make limits the ceiling of servers to come, and of clients to come of servers that run. Raises: SharingError.

        Clients that run keep the limits that they began with: the daemon has no command for them.
        """
        servers = self.servers()
        percentage = settings.active_thread_percentage
        self._set_percentage(100 if percentage is None else percentage, servers)
        if (memory := memory_limit(device, settings)) is not None:
            self._set_memory(memory, servers)

    def servers(self) -> list[int]:
        """List the pids of the servers that run, as the daemon counts them. Raises: SharingError."""
        return [int(word) for word in self.ask("get_server_list").split() if word.isdecimal()]

    def server_status(self, pid: int) -> str:
        """Return what the daemon says of one of its servers. Raises: SharingError."""
        return self.ask(f"get_server_status {pid}")

    def quit(self, seconds: int) -> bool:
        """Ask the daemon to end, its servers with it after so many seconds. Says whether it will."""
        outcome = self._try(f"quit -t {seconds}")
        if outcome.status:
            outcome = self._try("quit")
        return outcome.status == 0

    def _set_percentage(self, percentage: int, servers: list[int]) -> None:
        self.ask(f"set_default_active_thread_percentage {percentage}")
        said = self.ask("get_default_active_thread_percentage")
        if (found := _NUMBER.search(said)) and float(found[0]) != percentage:
            raise _ignored("a default active thread percentage", str(percentage), said)
        for pid in servers:
            self.ask(f"set_active_thread_percentage {pid} {percentage}")

    def _set_memory(self, limit: int, servers: list[int]) -> None:
        text = f"{limit // _MIB}M"
        self.ask(f"set_default_device_pinned_mem_limit {_DEVICE} {text}")
        said = self.ask(f"get_default_device_pinned_mem_limit {_DEVICE}")
        if not may_be(limit, said):
            raise _ignored("a default pinned memory limit", text, said)
        for pid in servers:
            self.ask(f"set_device_pinned_mem_limit {pid} {_DEVICE} {text}")

    def _try(self, command: str) -> ProgramExit:
        """Return a command, unless somebody else than our daemon would hear it: then the outcome says who listens."""
        if fault := peer.fault(self._folder.control, self._process):
            return ProgramExit(None, fault)
        seconds = max(_LEAST_S, min(COMMAND_S, self.left()))
        return launch.ask(self._program, self._folder, command, seconds=seconds)


def memory_limit(device: SharedDevice, settings: MpsSettings) -> int | None:
    """Return the limit in bytes for each client on a device: its own, else the general one; None for no limit."""
    limits = settings.per_device_limits
    for name in (device.uuid, device.gpu_uuid, str(_DEVICE)):
        if name in limits:
            return limits[name]
    return settings.pinned_memory_limit


def may_be(limit: int, words: str) -> bool:
    """Return whether a size that was read back can be the limit, in bytes.

    Drivers show it in their own ways, newer ones in whole GiB, rounded down; words without a size say nothing.

    >>> may_be(6 << 30, "6G"), may_be(4606 << 20, "4G"), may_be(512 << 20, "512M"), may_be(6 << 30, "0M")
    (True, True, True, False)
    """
    found = _SIZE.search(words)
    if not found:
        return True
    shown = float(found[1]) * (_GIB if found[2].upper() == "G" else _MIB)
    rounding = _GIB if found[2].upper() == "G" else _MIB
    return shown <= limit < shown + rounding


def _ignored(what: str, wanted: str, found: str) -> SharingError:
    return SharingError(
        "mps-refused",
        f"the MPS control daemon took {what} of {wanted} but says {found[:80]!r}",
        hint="the GPU may not support limits (Volta and newer do)",
    )
