"""Driver binding: a PCI function moves from one kernel driver to another, and each write is read back.

    driver_override ← the new driver    from now on only this driver may bind the function
    unbind          ← the address       from the driver that has it
    bind            ← the address       to the new one
    driver_override ← nothing           whether or not the bind succeeded: no override stays set

`DriverBinding` calls its caller before each write, so that the caller can record the intent. Every call starts from
what sysfs shows and may be repeated after a crash at any line.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware import child_process
from dra_driver.hardware.pci import entries_of, entries_of_process, function_folder, read_text
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vfio import answers, can_be_reset, read_function, read_override

if TYPE_CHECKING:
    from subprocess import Popen


# Writing to sysfs: one write in a child process with a deadline.


class KernelWriter(Protocol):
    """Writes files of sysfs."""

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        """Write a text in one call. Raises: OSError as the kernel reports it, TimeoutError after the deadline."""


@dataclass(frozen=True, slots=True)
class BusAccess:
    """Where the PCI bus of a node is seen, and what writes to it."""

    roots: Roots
    writer: KernelWriter


@runtime_checkable
class OwnBus(Protocol):
    """Optional ability: hardware that has a PCI bus of its own, instead of this machine's."""

    def bus_access(self) -> BusAccess:
        """Return the bus."""


class ChildWriter:
    """Makes each write in a child process of its own, which can be killed if the kernel hangs."""

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        """Write a text in one call. Raises: OSError as the kernel reports it, TimeoutError after the deadline."""
        from subprocess import DEVNULL, Popen, TimeoutExpired  # noqa: PLC0415 - only where a GPU is passed through

        command = [sys.executable, "-I", "-S", str(Path(child_process.__file__)), "write", str(path), text]
        child = Popen(command, env={}, stdin=DEVNULL, stdout=DEVNULL, start_new_session=True, cwd="/")
        try:
            status = child.wait(max(0.0, deadline_s))
        except TimeoutExpired:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            _reap_when_over(child)
            raise TimeoutError(f"writing {path} takes longer than {deadline_s:.0f} s") from None
        if status:
            raise OSError(status, f"writing {text!r} to {path} failed")


def _reap_when_over(child: Popen[bytes]) -> None:
    """Reap the child if it has ended; a child that is still blocked in the kernel is reaped by a later Popen."""
    from subprocess import TimeoutExpired  # noqa: PLC0415 - as above

    with suppress(TimeoutExpired):
        child.wait(0.2)


BeforeWrite = Callable[[str, str], None]
Remaining = Callable[[], float]
_NOTHING = "\n"  # clears driver_override
# The least time for any write, because attempts that end before their first write is done never make progress.
WRITE_SECONDS = 2.0
OVERRIDE, UNBIND, BIND, CLEAR, RESET = "override", "unbind", "bind", "clear", "reset"


class DriverBinding:
    """Moves the functions of one bus.

    Args:
        access: the bus and its writer.
        before: called with a function's address and the name of the write before each write.
        remaining: returns how many seconds are left.
    """

    def __init__(self, access: BusAccess, *, before: BeforeWrite, remaining: Remaining) -> None:
        self._access, self._before, self._remaining = access, before, remaining

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to a driver, or release it from its driver where that is "". Idempotent.

        Raises: HardwareError("hardware.not-answering"), ("hardware.bind-failed"), ("hardware.unbind-failed"),
        ("hardware.gpu-gone"), all LATER.
        """
        now = self._driver_of(address)
        if now != driver:
            if driver and read_override(self._access.roots, address) != driver:  # an earlier attempt may have set it
                self._write(address, OVERRIDE, self._folder(address) / "driver_override", driver)
            if now:
                self._unbind(address, now)
        try:
            if driver and self._driver_of(address) != driver:
                self._bind(address, driver)
        finally:
            self._clear(address)

    def reset(self, address: str) -> None:
        """Reset a function, and verify that it answers afterwards.

        Raises: HardwareError("hardware.function-not-reset", LATER): no other user may get it before the reset succeeds.
        """
        if not can_be_reset(self._access.roots, address):
            raise self._not_reset(address, "the kernel has no way to reset it")
        try:
            self._write(address, RESET, self._folder(address) / "reset", "1")
        except HardwareError as error:
            raise self._not_reset(address, error.message) from error
        if not answers(self._access.roots, address):
            raise self._not_reset(address, "it does not answer after the reset")

    def _unbind(self, address: str, driver: str) -> None:
        self._write(address, UNBIND, self._drivers / driver / "unbind", address)
        left = self._driver_of(address)
        if left:
            raise HardwareError("unbind-failed", f"{address} is still bound to {left}", retry=Retry.LATER)

    def _bind(self, address: str, driver: str) -> None:
        folder = self._drivers / driver
        if not folder.is_dir():
            text = f"{address} can't be bound to {driver}: that driver is not loaded"
            raise HardwareError("bind-failed", text, hint=f"load {driver} on the host", retry=Retry.LATER)
        self._write(address, BIND, folder / "bind", address)
        now = self._driver_of(address)
        if now != driver:
            text = f"{address} was written to {driver}'s bind, but is bound to {now or 'no driver'}"
            raise HardwareError("bind-failed", text, hint="the kernel's log has the reason", retry=Retry.LATER)

    def _clear(self, address: str) -> None:
        """Let any driver bind the function again, as before. Raises: HardwareError."""
        if read_override(self._access.roots, address):
            self._write(address, CLEAR, self._folder(address) / "driver_override", _NOTHING)
            if left := read_override(self._access.roots, address):
                text = f"driver_override of {address} is still {left!r:.80}"
                raise HardwareError("bind-failed", text, retry=Retry.LATER)

    def _write(self, address: str, what: str, path: Path, text: str) -> None:
        self._before(address, what)
        try:
            self._access.writer.write(path, text, max(self._remaining(), WRITE_SECONDS))
        except TimeoutError as error:
            raise HardwareError(
                "not-answering",
                f"{what} of {address} does not return: something still uses the device, or its driver hangs",
                hint="the kernel's log shows what it waits for",
                retry=Retry.LATER,
            ) from error
        except OSError as error:
            code = "unbind-failed" if what == UNBIND else "bind-failed"
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise HardwareError(code, f"{what} of {address}: {reason}", retry=Retry.LATER) from error

    def _driver_of(self, address: str) -> str:
        now = read_function(self._access.roots, address)
        if now is None:
            raise HardwareError("gpu-gone", f"{address} is not on the PCI bus any more", retry=Retry.LATER)
        return now.driver

    def _folder(self, address: str) -> Path:
        return function_folder(self._access.roots, address)

    @property
    def _drivers(self) -> Path:
        return Path(self._access.roots.sys, "bus/pci/drivers")

    @staticmethod
    def _not_reset(address: str, why: str) -> HardwareError:
        text = f"{address} was in a virtual machine and could not be reset: {why}"
        return HardwareError("function-not-reset", text, hint="reboot the node", retry=Retry.LATER)


# Users of device nodes: the processes of the host that have one open, by the node's number and not by its path.

_NULL = os.makedev(1, 3)  # of simulated nodes: every process has /dev/null open
_Identity = tuple[str, int, int]
_PCI_DEVICE = re.compile(r"^drm-pdev:\s*([0-9a-f:.]{12,17})$", re.MULTILINE)


def node_names(roots: Roots, address: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes below /dev of a GPU: those of its vendor, and those of the display system."""
    drawn = entries_of(function_folder(roots, address) / "drm")
    return tuple(dict.fromkeys((*known, *(f"dri/{name}" for name in drawn if name.startswith(("card", "render"))))))


@runtime_checkable
class ComputeLister(Protocol):
    """Optional ability: hardware whose kernel driver lists the programs that compute on a GPU."""

    def computing_on(self, address: str) -> frozenset[int]:
        """Return the ids of these processes, as the host has them."""


def processes_with(
    roots: Roots, names: Iterable[str], drawn_on: str = "", numbers: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the processes that have one of these nodes below /dev open, as far as /proc shows them.

    With `drawn_on`, a PCI address, also those with a file of the display system that belongs to this GPU; with
    `numbers`, those of character devices, also the processes that have one of these open, whatever its name.
    Raises: HardwareError("hardware.gpu-in-use", LATER) if the agent has no descriptors left to look.
    """
    wanted = frozenset(filter(None, (_identity(f"{roots.dev}/{name}") for name in names)))
    wanted |= {("device", number, 0) for number in numbers if number != _NULL}
    if drawn_on:
        wanted |= {_drawn(drawn_on)}
    if not wanted:
        return ()
    processes = (name for name in entries_of_process(roots.proc) if name.isdigit())
    return tuple(sorted(int(name) for name in processes if not wanted.isdisjoint(_open_of(f"{roots.proc}/{name}"))))


def _open_of(process: str) -> Iterator[_Identity]:
    for name in entries_of_process(f"{process}/fd"):
        path = f"{process}/fd/{name}"
        try:
            target = os.readlink(path)  # noqa: PTH115
        except OSError:
            continue
        if "/dev/" not in target:  # other files may be on a file server that no longer answers
            continue
        if (found := _identity(path)) is not None:
            yield found
        if "/dri/" in target and (drm := _PCI_DEVICE.search(read_text(f"{process}/fdinfo/{name}") or "")):
            yield _drawn(drm[1])


def _drawn(address: str) -> _Identity:
    return (f"drm {address}", 0, 0)


def _identity(path: str) -> _Identity | None:
    """Return what identifies the device behind a file; None for /dev/null, and for a file that no longer exists."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return None if found.st_rdev == _NULL else ("device", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)


# What is attached to a PCI function: the device nodes below it by their numbers, disks, and network interfaces.

_DEEPEST, _MAX_FOLDERS = 24, 20_000  # hubs on hubs are not deeper than this
_NUMBERS = re.compile(r"(\d{1,4}):(\d{1,7})")


@dataclass(frozen=True, slots=True)
class AttachedDevices:
    """`nodes` are the numbers of character devices; `in_use` names disks, and network interfaces that are not down."""

    nodes: frozenset[int]
    in_use: tuple[str, ...] = ()


def read_attached_devices(roots: Roots, address: str) -> AttachedDevices:
    """Return what is attached to a function; nothing for one that is not on the bus."""
    nodes: set[int] = set()
    in_use: list[str] = []
    home = os.path.realpath(function_folder(roots, address))
    for folder in _folders(home):
        above = folder.removeprefix(home).split("/")[1:-1]
        name = folder.rpartition("/")[2]
        if "block" in above:
            if above[-1] == "block":
                in_use.append(f"disk {name}")
        elif above[-1:] == ["net"]:
            if read_text(f"{folder}/operstate") != "down":
                in_use.append(f"network interface {name}")
        elif found := _NUMBERS.fullmatch(read_text(f"{folder}/dev") or ""):
            nodes.add(os.makedev(int(found[1]), int(found[2])))
    return AttachedDevices(frozenset(nodes), tuple(in_use))


def _folders(home: str) -> Iterator[str]:
    """Yield the folders below one, links excepted, up to a bound."""
    pending, count = deque([(home, 0)]), 0
    while pending and count < _MAX_FOLDERS:
        folder, depth = pending.popleft()
        count += 1
        if depth:
            yield folder
        if depth < _DEEPEST:
            pending.extend((one, depth + 1) for one in _own_folders(folder))


def _own_folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
