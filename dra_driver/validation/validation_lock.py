"""The validation lock: it lets one test run on a node at a time; a claim that arrives ends the test.

In: the folder that the agents and commands of a node share. Out: the right to test one device, or the certainty that
no test of it runs. The process that tests a device holds a lock on one file, which contains the device and the process.
The process of the test holds the same lock, so a free lock means that no context is left, whichever process was killed.

A claim is recorded in the ledger before Prepare checks the lock, and a test checks the ledger after it has acquired
the lock: so one of the two notices the other, without a lock that both would need.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.errors import NodeError, PrepareError, Retry

FILE_NAME = "validation.lock"
INTERRUPT_SECONDS = 2.0
_POLL_SECONDS = 0.005
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Mark:
    """The content of the file: the device, by its name, and the test's process, by its pid and when it began."""

    device: str
    pid: int
    began: str

    def concerns(self, devices: Collection[str]) -> bool:
        return any(overlap(name, self.device) for name in devices)

    def kill(self) -> None:
        """End the process and its group, unless the pid belongs to another process by now."""
        with suppress(OSError):
            life = os.pidfd_open(self.pid)  # from now on `began_at` shows if the pid belongs to another process
            try:
                if began_at(self.pid) == self.began:
                    os.killpg(self.pid, signal.SIGKILL)
            finally:
                os.close(life)


class HeldValidationLock:
    """The lock while it is held; `fd` is to be inherited by the test's process."""

    def __init__(self, fd: int, device: str) -> None:
        self.fd, self._device = fd, device
        self._write("", 0)

    def started(self, pid: int) -> None:
        """Record the process, so that a claim can end it."""
        self._write(began_at(pid), pid)

    def _write(self, began: str, pid: int) -> None:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, (json.dumps({"device": self._device, "pid": pid, "began": began}) + "\n").encode(), 0)


class ValidationLock:
    """The lock of one node. Any thread of any process may use it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    @contextmanager
    def take(self, device: str, patience_s: float) -> Iterator[HeldValidationLock]:
        """Hold the lock for one device, by its name.

        Raises: NodeError("node.validation-busy", LATER) while another device is tested, NodeError("node.lock-file").
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NodeError("lock-file", f"{self._path} can't be opened: {error.strerror}") from error
        try:
            until = time.monotonic() + patience_s
            while not _locked(fd, fcntl.LOCK_EX):
                if time.monotonic() >= until:
                    raise NodeError("validation-busy", "another device is being tested", retry=Retry.LATER)
                time.sleep(10 * _POLL_SECONDS)
            yield HeldValidationLock(fd, device)
            with suppress(OSError):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def interrupt(self, devices: Collection[str], patience_s: float = INTERRUPT_SECONDS) -> None:
        """End a test that concerns any of these devices, by name, and wait until its process is gone.

        Call this once the ledger records that the devices are held. If no test runs, it costs a few microseconds.

        Raises: PrepareError("prepare.validation-hangs", LATER).
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            until = time.monotonic() + patience_s
            while not _locked(fd, fcntl.LOCK_SH):
                mark = _read(fd)
                if mark is not None and not mark.concerns(devices):
                    return
                if mark is not None and mark.pid:
                    mark.kill()
                if time.monotonic() >= until:
                    raise _hangs(mark)
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(fd)


def overlap(one: str, other: str) -> bool:
    """Return whether two devices, by their names, are the same, or one is a part or a share of the other.

    >>> overlap("gpu-0000-65-00-0", "gpu-0000-65-00-0-mig-1g10gb-19-2"), overlap("gpu-0000-65-00-0", "gpu-0000-65-00-1")
    (True, False)
    """
    return one == other or one.startswith((f"{other}-", f"{other}/")) or other.startswith((f"{one}-", f"{one}/"))


def began_at(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> _Mark | None:
    """Return the content of the file; None while it is being written."""
    try:
        wire = json.loads(os.pread(fd, _MAX_BYTES, 0))
        return _Mark(str(wire["device"]), int(wire["pid"]), str(wire["began"]))
    except (ValueError, KeyError, TypeError):
        return None


def _hangs(mark: _Mark | None) -> PrepareError:
    what = f"process {mark.pid} of the test of {mark.device}" if mark else "the test of a device"
    hint = "the GPU may hang; the kubelet will try again"
    return PrepareError("validation-hangs", f"{what} was killed and does not end", hint=hint, retry=Retry.LATER)
