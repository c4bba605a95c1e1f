"""All daemons of this supervisor: what to do when one ends, and what to report about them.

In: commands, and the kernel's notice that a process has ended (pidfd, no polling). Out: daemons that run as wanted.
Commands for the same device wait for each other, those for different devices do not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.errors import DriverError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import children, daemon, folder, kinship
from dra_driver.mps.control import Control
from dra_driver.mps.folder import SHM_MIB, DaemonRecord, Folder
from dra_driver.mps.keeping.entries import DaemonEntries, DaemonEntry
from dra_driver.mps.keeping.log_files import bound_logs
from dra_driver.mps.keeping.process_ends import ProcessEnds
from dra_driver.mps.kinship import Surroundings
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.processes import ProcessIdentity
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

REPAIR_S = 10.0  # for one attempt to restart a daemon
LOOK_S = 1.0  # for a running daemon to answer again: a client can prevent that, and Unprepare waits meanwhile
DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before the next attempt
STEADY_S = 60.0  # after a daemon has run for this long, the delays start over
_LOGS_S = 60.0
_AGAIN_S = 0.2
_NOT_READY = "sharing.mps-not-ready"


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The report on one daemon. `error` is why it is not ready, or its last fault."""

    state: DaemonRecord
    at: Folder
    is_ready: bool
    restarts: int
    error: str


class Daemons:
    """The daemons below `root`.

    Args:
        root: folder of all daemons; made by the caller.
        find: returns the control program. Raises: SharingError.
        boot_id: of this boot.
        cgroup, shm_mib: see `kinship.Surroundings`.
        delays_s: before each attempt to repair a daemon; the last one for all further attempts.
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
        self._root, self._find, self._boot_id, self._delays_s = root, find, boot_id, delays_s
        self._cgroup, self._shm_mib = cgroup, shm_mib
        self._entries = DaemonEntries(root)
        self._ends = ProcessEnds()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="keeper", daemon=True)

    def begin(self) -> None:
        """Take over what an earlier supervisor left: keep daemons that run, and start or remove the others."""
        for at in folder.found(self._root):
            state = daemon.current(at, self._around())
            entry = self._entries.add(at)
            entry.state = state
            if state is None or not state.is_wanted:
                entry.due = time.monotonic()
                continue
            process = kinship.running(at, state, self._around())
            log.info(
                "MPS daemon found" if process else "MPS daemon is gone",
                extra=fields(device=state.device.name, pid=process.pid if process else 0),
            )
            if process and process == state.process and state.was_ready:
                self._look_after(entry, process)
            else:
                entry.due = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """End the watching thread. The daemons keep running, so that their clients do too."""
        self._is_closed = True
        self._ends.wake()
        if self._thread.is_alive():
            self._thread.join(REPAIR_S)

    def start(self, device: SharedDevice, settings: MpsSettings, deadline: float) -> Folder:
        """Return the folder of a device's daemon, which is ready on return. Raises: SharingError, NodeError."""
        with self._entries.held(folder.key_of(device.uuid), deadline) as entry:
            entry.due = None
            try:
                self._start(entry, device, settings, deadline)
            except DriverError as error:
                self._note_failure(entry, error)
                raise
            entry.error = ""
            return entry.at

    def stop(self, device: SharedDevice, deadline: float) -> None:
        """End a device's daemon and remove its folder. Raises: SharingError, NodeError."""
        with self._entries.held(folder.key_of(device.uuid), deadline) as entry:
            try:
                self._stop(entry, deadline)
            except DriverError:
                self._retry_later(entry)
                raise

    def tidy(self, device: SharedDevice, deadline: float) -> int:
        """Remove what a device's ended clients left in their /dev/shm; return how many files. Raises: SharingError."""
        with self._entries.held(folder.key_of(device.uuid), deadline) as entry:
            return entry.at.sweep_shm() if entry.state is not None else 0

    def reports(self) -> tuple[DaemonReport, ...]:
        """Return a report on every daemon, without waiting for any."""
        return tuple(_report(entry.state, entry) for entry in self._entries.kept() if entry.state is not None)

    def ask(self, device: SharedDevice, deadline: float) -> tuple[DaemonReport, dict[int, str]]:
        """Return a report on one daemon and the servers that it lists (state by pid). Raises: SharingError."""
        with self._entries.held(folder.key_of(device.uuid), deadline) as entry:
            if entry.state is None:
                raise SharingError("mps-not-running", f"no MPS daemon is kept for {device.name}", retry=Retry.LATER)
            if entry.state.process is None:
                raise SharingError("mps-not-ready", f"the MPS daemon of {device.name} is gone", retry=Retry.LATER)
            control = Control(self._find(), entry.at, entry.state.process, deadline)
            return _report(entry.state, entry), {pid: control.server_status(pid) for pid in control.servers()}

    # These run under the entry's lock.

    def _start(self, entry: DaemonEntry, device: SharedDevice, settings: MpsSettings, deadline: float) -> None:
        began = time.monotonic()
        state = daemon.start(entry.at, device, settings, self._around(must_find=True), deadline)
        assert state.process is not None  # noqa: S101 - a ready daemon has a process
        if entry.state is None or entry.state.process != state.process:
            took = round((time.monotonic() - began) * 1000)
            log.info("MPS daemon started", extra=fields(device=device.name, pid=state.process.pid, took_ms=took))
            entry.began = time.monotonic()
        entry.state = state
        self._look_after(entry, state.process)

    def _stop(self, entry: DaemonEntry, deadline: float) -> None:
        had = entry.state
        self._ends.drop(entry)
        try:
            daemon.stop(entry.at, self._around(), deadline)
        except DriverError as error:
            entry.state, entry.error = entry.at.read(), str(error)
            raise
        if had is not None:
            log.info("MPS daemon stopped", extra=fields(device=had.device.name))
        entry.state, entry.error, entry.due, entry.attempts = None, "", None, 0

    def _repair(self, key: str) -> None:
        """Start a daemon that ended, or end one that is not wanted. A failure is tried again later."""
        try:
            with self._entries.held(key, float("inf")) as entry:
                try:
                    state = daemon.current(entry.at, self._around())
                    runs = state is not None and state.process is not None and state.process.is_alive()
                    deadline = time.monotonic() + (LOOK_S if runs else REPAIR_S)
                    if state is None or not state.is_wanted:
                        self._stop(entry, deadline)
                    else:
                        self._start_again(entry, state, deadline)
                except DriverError as error:
                    log.warning("MPS daemon not repaired", extra=fields(file=key, code=error.code, err=str(error)))
                    entry.error = str(error)
                    self._retry_later(entry)
        except Exception:
            log.exception("MPS daemon not repaired", extra=fields(file=key))

    def _start_again(self, entry: DaemonEntry, state: DaemonRecord, deadline: float) -> None:
        entry.state = state
        if left := kinship.orphans(entry.at, state, self._around()):
            log.warning(
                "MPS servers without their daemon keep serving their clients",
                extra=fields(device=state.device.name, count=len(left)),
            )
        try:
            self._start(entry, state.device, state.settings, deadline)
        except DriverError:
            entry.state = daemon.current(entry.at, self._around())
            raise
        entry.restarts += 1 if state.process != entry.state.process else 0
        entry.error = ""

    def _note_failure(self, entry: DaemonEntry, error: DriverError) -> None:
        """Check what a failed start has left: nothing, a daemon that goes on as before, or one to repair."""
        entry.state = state = daemon.current(entry.at, self._around())
        if state is None:
            return
        if state.process is not None and state.process.is_alive() and error.code != _NOT_READY:
            self._look_after(entry, state.process)
            return
        entry.error = str(error)
        self._retry_later(entry)

    def _look_after(self, entry: DaemonEntry, process: ProcessIdentity) -> None:
        """Watch for the end of a process; one that has ended already is looked at in the watching thread."""
        if not self._ends.watch(entry, process):
            entry.due = time.monotonic()
            self._ends.wake()

    def _retry_later(self, entry: DaemonEntry) -> None:
        delay = self._delays_s[min(entry.attempts, len(self._delays_s) - 1)]
        entry.attempts += 1
        entry.due = time.monotonic() + delay
        self._ends.wake()

    # These run in the watching thread.

    def _watch(self) -> None:
        logs_due = time.monotonic() + _LOGS_S
        while not self._is_closed:
            try:
                self._begin_repairs()
                self._await_ends(logs_due)
                children.reap()
                if time.monotonic() >= logs_due:
                    logs_due = time.monotonic() + _LOGS_S
                    bound_logs(entry.at for entry in self._entries.kept())
            except Exception:
                log.exception("MPS daemons not watched")
                time.sleep(_AGAIN_S)

    def _begin_repairs(self) -> None:
        now = time.monotonic()
        for entry in self._entries.kept():
            if entry.due is not None and entry.due <= now:
                entry.due = None
                threading.Thread(target=self._repair, args=(entry.at.key,), name="repair", daemon=True).start()

    def _await_ends(self, until: float) -> None:
        """Sleep until a daemon ends, an attempt is due, or another thread wakes this one."""
        due = min((entry.due for entry in self._entries.kept() if entry.due is not None), default=until)
        ended = self._ends.wait(min(due, until))
        for entry in self._entries.kept():
            if entry.watched and entry.watched[1] in ended:
                self._ended(entry)

    def _ended(self, entry: DaemonEntry) -> None:
        """Record that a daemon ended; if a command is working on it, it is checked afterwards."""
        if not entry.lock.acquire(blocking=False):
            entry.due = time.monotonic() + _AGAIN_S
            return
        try:
            if entry.watched is None or entry.watched[0].is_alive():
                return
            self._ends.drop(entry)
            name = entry.state.device.name if entry.state else entry.at.key
            entry.error = "the MPS control daemon ended by itself"
            log.error("MPS daemon ended by itself", extra=fields(device=name))
            if time.monotonic() - entry.began > STEADY_S:
                entry.attempts = 0
            self._retry_later(entry)
        finally:
            entry.lock.release()

    def _around(self, *, must_find: bool = False) -> Surroundings:
        program: ControlProgram | None = None
        try:
            program = self._find()
        except SharingError:
            if must_find:
                raise
        return Surroundings(program, self._boot_id, self._cgroup, self._shm_mib)


def _report(state: DaemonRecord, entry: DaemonEntry) -> DaemonReport:
    is_ready = state.was_ready and not entry.error and state.process is not None and state.process.is_alive()
    return DaemonReport(state, entry.at, is_ready, entry.restarts, entry.error)
