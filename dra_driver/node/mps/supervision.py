"""The supervisor: it starts, ends and repairs all daemons, as commands and the watch ask for.

In: commands, and daemons that the watch found to be ended. Out: daemons that run as wanted, and reports on them.
Commands for the same device wait for each other; commands for different devices do not.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dra_driver.base.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.base.telemetry.logs import fields, start_thread
from dra_driver.base.wire import MpsSettings, SharedDevice
from dra_driver.node.mps import daemon, processes
from dra_driver.node.mps.control_client import ControlClient
from dra_driver.node.mps.daemon import DaemonContext
from dra_driver.node.mps.daemon_folder import (
    SHM_MIB,
    DaemonEntries,
    DaemonEntry,
    DaemonFolder,
    DaemonRecord,
    DaemonReport,
    folders_below,
    key_of,
    report_of,
)
from dra_driver.node.mps.launch import ControlProgram
from dra_driver.node.mps.processes import ProcessIdentity

# The log files of MPS daemons, kept bounded while daemons write to them.

LOG_BYTES = 4 << 20  # the longest that a log file may be


def bound_logs(folders: Iterable[DaemonFolder], *, max_bytes: int = LOG_BYTES) -> None:
    """Shorten log files longer than `max_bytes` to their newest part, in place, because daemons keep them open."""
    for folder in folders:
        for path in folder.log.glob("*.log") if folder.log.is_dir() else ():
            with suppress(OSError):
                fd = processes.open_regular(path, os.O_RDWR)
                try:
                    _cut(fd, max_bytes)
                finally:
                    os.close(fd)


def _cut(fd: int, max_bytes: int) -> None:
    size = os.fstat(fd).st_size
    if size > max_bytes:
        kept = os.pread(fd, max_bytes // 2, size - max_bytes // 2).partition(b"\n")[2]
        os.ftruncate(fd, 0)
        os.pwrite(fd, kept, 0)


# Process ends: the kernel reports through pidfds, without polling, that processes have ended.


class ProcessEnds:
    """The watched processes of all entries.

    A caller that changes what is watched for an entry holds the entry's lock.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)

    def watch(self, entry: DaemonEntry, process: ProcessIdentity) -> bool:
        """Watch a process in place of what was watched for the entry; return False if it has ended already."""
        if entry.watched and entry.watched[0] == process and process.is_alive():
            return True
        self.drop(entry)
        fd = processes.open_pidfd(process)
        if fd is None:
            return False
        entry.watched = (process, fd)
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        return True

    def drop(self, entry: DaemonEntry) -> None:
        """Stop watching the process of an entry."""
        if entry.watched is not None:
            _, fd = entry.watched
            entry.watched = None
            with suppress(OSError):
                self._epoll.unregister(fd)
            os.close(fd)

    def wake(self) -> None:
        """Wake the thread in `wait`; if no thread waits, the next call of `wait` returns at once."""
        os.eventfd_write(self._wake, 1)

    def wait(self, until: float) -> set[int]:
        """Sleep until a process ends, `until` (monotonic seconds), or `wake`; return the pidfds of those that ended."""
        ended = {fd for fd, _ in self._epoll.poll(max(0.0, until - time.monotonic()))}
        if self._wake in ended:
            ended.discard(self._wake)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return ended


# The watch over daemons: it detects that a daemon has ended, and has it repaired when the next attempt is due.

log = logging.getLogger(__name__)

DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before the first, second, … attempt to repair a daemon
STEADY_S = 60.0  # after a daemon has run for this long, the delays start over
_LOGS_S = 60.0
_AGAIN_S = 0.2
_NO_THREAD_S = 1.0  # until the next attempt to start the thread of a repair


class DaemonWatch:
    """The thread that watches over the daemons of `entries`.

    Args:
        entries: the entries of all daemons. The caller of a method that takes an entry holds the entry's lock.
        repair: called with the key of a daemon that is to be started again, or ended; it logs its own errors.
        delays_s: seconds before each attempt to repair a daemon; the last one applies to all further attempts.
    """

    def __init__(self, entries: DaemonEntries, repair: Callable[[str], None], *, delays_s: tuple[float, ...]) -> None:
        self._entries, self._repair, self._delays_s = entries, repair, delays_s
        self._ends = ProcessEnds()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End the thread, and wait for its end for at most `seconds`."""
        self._is_closed = True
        self._ends.wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def watch_process(self, entry: DaemonEntry, process: ProcessIdentity) -> None:
        """Watch for the end of a process; if it has ended already, let the watching thread repair it at once."""
        if not self._ends.watch(entry, process):
            entry.due = time.monotonic()
            self._ends.wake()

    def retry_later(self, entry: DaemonEntry) -> None:
        """Schedule the repair of a daemon; the delay grows with the number of attempts."""
        delay = self._delays_s[min(entry.attempts, len(self._delays_s) - 1)]
        entry.attempts += 1
        entry.due = time.monotonic() + delay
        self._ends.wake()

    def drop(self, entry: DaemonEntry) -> None:
        """Stop watching the process of an entry."""
        self._ends.drop(entry)

    def _run(self) -> None:
        logs_due = time.monotonic() + _LOGS_S
        while not self._is_closed:
            try:
                self._start_repairs()
                self._wait_for_ends(logs_due)
                processes.reap()
                if time.monotonic() >= logs_due:
                    logs_due = time.monotonic() + _LOGS_S
                    bound_logs(entry.folder for entry in self._entries.all())
            except Exception:
                log.exception("watching MPS daemons failed")
                time.sleep(_AGAIN_S)

    def _start_repairs(self) -> None:
        now = time.monotonic()
        for entry in self._entries.all():
            if entry.due is not None and entry.due <= now:
                entry.due = None
                try:
                    start_thread(
                        threading.Thread(target=self._repair, args=(entry.folder.key,), name="repair", daemon=True)
                    )
                except NodeError as error:
                    entry.due = now + _NO_THREAD_S
                    log.warning("MPS daemon not repaired yet", extra=fields(code=error.code, err=str(error)))

    def _wait_for_ends(self, until: float) -> None:
        """Sleep until a daemon ends, an attempt to repair is due, or another thread wakes this one."""
        due = min((entry.due for entry in self._entries.all() if entry.due is not None), default=until)
        ended = self._ends.wait(min(due, until))
        for entry in self._entries.all():
            if entry.watched and entry.watched[1] in ended:
                self._handle_end(entry)

    def _handle_end(self, entry: DaemonEntry) -> None:
        """Record that a daemon ended; if a command holds its entry, check again a little later."""
        if not entry.lock.acquire(blocking=False):
            entry.due = time.monotonic() + _AGAIN_S
            return
        try:
            if entry.watched is None or entry.watched[0].is_alive():
                return
            self.drop(entry)
            name = entry.state.device.name if entry.state else entry.folder.key
            entry.error = "the MPS control daemon ended unexpectedly"
            log.error("MPS daemon ended unexpectedly", extra=fields(device=name))
            if time.monotonic() - entry.began > STEADY_S:
                entry.attempts = 0
            self.retry_later(entry)
        finally:
            entry.lock.release()


REPAIR_S = 10.0  # how long one attempt to restart a daemon may take
CHECK_S = 1.0  # how long a running daemon has to answer: a client can prevent that, and Unprepare waits meanwhile
_NOT_READY = "sharing.mps-not-ready"


class DaemonSupervisor:
    """The daemons below `root`.

    Args:
        root: the folder of all daemons, which the caller has made.
        find: returns the control program. Raises: SharingError.
        boot_id: the id of this boot.
        cgroup, shm_mib: see `daemon.DaemonContext`.
        delays_s: seconds before each attempt to repair a daemon; the last one applies to all further attempts.
    """

    def __init__(
        self,
        root: Path,
        find: Callable[[], ControlProgram],
        *,
        boot_id: str,
        cgroup: Path | None = None,
        shm_mib: int = SHM_MIB,
        delays_s: tuple[float, ...] = DELAYS_S,
    ) -> None:
        self._root, self._find, self._boot_id = root, find, boot_id
        self._cgroup, self._shm_mib = cgroup, shm_mib
        self._entries = DaemonEntries(root)
        self._watch = DaemonWatch(self._entries, self._repair, delays_s=delays_s)

    def begin(self) -> None:
        """Take over the daemons of an earlier supervisor: keep those that run, and start or remove the others."""
        for folder in folders_below(self._root):
            state = daemon.current(folder, self._context())
            entry = self._entries.add(folder)
            entry.state = state
            if state is None or not state.is_wanted:
                entry.due = time.monotonic()
                continue
            process = daemon.running(folder, state, self._context())
            log.info(
                "MPS daemon found" if process else "MPS daemon is gone",
                extra=fields(device=state.device.name, pid=process.pid if process else 0),
            )
            if process and process == state.process and state.was_ready:
                self._watch.watch_process(entry, process)
            else:
                entry.due = time.monotonic()
        self._watch.start()

    def close(self) -> None:
        """End the watching thread. The daemons and their clients keep running."""
        self._watch.close(REPAIR_S)

    def start(self, device: SharedDevice, settings: MpsSettings, deadline: float) -> DaemonFolder:
        """Return the folder of a device's daemon, which is ready on return. Raises: SharingError, NodeError."""
        with self._entries.held(key_of(device.uuid), deadline) as entry:
            entry.due = None
            try:
                self._start(entry, device, settings, deadline)
            except DriverError as error:
                self._handle_failure(entry, error)
                raise
            entry.error = ""
            return entry.folder

    def stop(self, device: SharedDevice, deadline: float) -> None:
        """End a device's daemon and remove its folder. Raises: SharingError, NodeError."""
        with self._entries.held(key_of(device.uuid), deadline) as entry:
            try:
                self._stop(entry, deadline)
            except DriverError:
                self._watch.retry_later(entry)
                raise

    def tidy(self, device: SharedDevice, deadline: float) -> int:
        """Remove the files that ended clients of a device left in their /dev/shm; return how many.

        Raises: SharingError.
        """
        with self._entries.held(key_of(device.uuid), deadline) as entry:
            return entry.folder.sweep_shm() if entry.state is not None else 0

    def reports(self) -> tuple[DaemonReport, ...]:
        """Return a report on every daemon, without waiting for any."""
        return tuple(report_of(entry.state, entry) for entry in self._entries.all() if entry.state is not None)

    def status(self, device: SharedDevice, deadline: float) -> tuple[DaemonReport, dict[int, str]]:
        """Return a report on one daemon and the servers that it lists (state by pid). Raises: SharingError."""
        with self._entries.held(key_of(device.uuid), deadline) as entry:
            if entry.state is None:
                raise SharingError("mps-not-running", f"no MPS daemon runs for {device.name}", retry=Retry.LATER)
            if entry.state.process is None:
                raise SharingError("mps-not-ready", f"the MPS daemon of {device.name} is gone", retry=Retry.LATER)
            control = ControlClient(self._find(), entry.folder, entry.state.process, deadline)
            return report_of(entry.state, entry), {pid: control.server_status(pid) for pid in control.servers()}

    # The callers of the methods below hold the entry's lock.

    def _start(self, entry: DaemonEntry, device: SharedDevice, settings: MpsSettings, deadline: float) -> None:
        began = time.monotonic()
        state = daemon.start(entry.folder, device, settings, self._context(must_find=True), deadline)
        assert state.process is not None  # noqa: S101 - a ready daemon has a process
        if entry.state is None or entry.state.process != state.process:
            took = round((time.monotonic() - began) * 1000)
            log.info("MPS daemon started", extra=fields(device=device.name, pid=state.process.pid, took_ms=took))
            entry.began = time.monotonic()
        entry.state = state
        self._watch.watch_process(entry, state.process)

    def _stop(self, entry: DaemonEntry, deadline: float) -> None:
        had = entry.state
        self._watch.drop(entry)
        try:
            daemon.stop(entry.folder, self._context(), deadline)
        except DriverError as error:
            entry.state, entry.error = entry.folder.read(), str(error)
            raise
        if had is not None:
            log.info("MPS daemon stopped", extra=fields(device=had.device.name))
        entry.state, entry.error, entry.due, entry.attempts = None, "", None, 0

    def _repair(self, key: str) -> None:
        """Start a daemon that ended, or end one that is not wanted. If that fails, it is tried again later."""
        with self._entries.held(key, float("inf")) as entry:
            try:
                self._repair_now(entry)
            except DriverError as error:
                log.warning("MPS daemon not repaired", extra=fields(file=key, code=error.code, err=str(error)))
                entry.error = str(error)
                self._watch.retry_later(entry)
            except Exception:
                log.exception("MPS daemon not repaired", extra=fields(file=key))
                entry.error = "a bug in the MPS supervisor; see its log"
                self._watch.retry_later(entry)

    def _repair_now(self, entry: DaemonEntry) -> None:
        state = daemon.current(entry.folder, self._context())
        runs = state is not None and state.process is not None and state.process.is_alive()
        deadline = time.monotonic() + (CHECK_S if runs else REPAIR_S)
        if state is None or not state.is_wanted:
            self._stop(entry, deadline)
        else:
            self._start_again(entry, state, deadline)

    def _start_again(self, entry: DaemonEntry, state: DaemonRecord, deadline: float) -> None:
        entry.state = state
        if left := daemon.orphans(entry.folder, state, self._context()):
            log.warning(
                "MPS servers without their daemon keep serving their clients",
                extra=fields(device=state.device.name, count=len(left)),
            )
        try:
            self._start(entry, state.device, state.settings, deadline)
        except DriverError:
            entry.state = daemon.current(entry.folder, self._context())
            raise
        entry.restarts += 1 if state.process != entry.state.process else 0
        entry.error = ""

    def _handle_failure(self, entry: DaemonEntry, error: DriverError) -> None:
        """Record what a failed start has left: no daemon, a daemon that runs as before, or one to be repaired."""
        entry.state = state = daemon.current(entry.folder, self._context())
        if state is None:
            return
        if state.process is not None and state.process.is_alive() and error.code != _NOT_READY:
            self._watch.watch_process(entry, state.process)
            return
        entry.error = str(error)
        self._watch.retry_later(entry)

    def _context(self, *, must_find: bool = False) -> DaemonContext:
        program: ControlProgram | None = None
        try:
            program = self._find()
        except SharingError:
            if must_find:
                raise
        return DaemonContext(program, self._boot_id, self._cgroup, self._shm_mib)
