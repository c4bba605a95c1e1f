"""The supervisor: it starts, ends and repairs all daemons, as commands and the watch ask for.

In: commands, and daemons that the watch found to be ended. Out: daemons that run as wanted, and reports on them.
Commands for the same device wait for each other; commands for different devices do not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from dra_driver.model.errors import DriverError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import daemon, daemon_processes
from dra_driver.mps.control_client import ControlClient
from dra_driver.mps.daemon_folder import SHM_MIB, DaemonFolder, DaemonRecord, folders_below, key_of
from dra_driver.mps.daemon_processes import DaemonContext
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.supervision.entries import DaemonEntries, DaemonEntry
from dra_driver.mps.supervision.reports import DaemonReport, report_of
from dra_driver.mps.supervision.watch import DELAYS_S, DaemonWatch
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

REPAIR_S = 10.0  # how long one attempt to restart a daemon may take
CHECK_S = 1.0  # how long a running daemon has to answer: a client can prevent that, and Unprepare waits meanwhile
_NOT_READY = "sharing.mps-not-ready"


class DaemonSupervisor:
    """The daemons below `root`.

    Args:
        root: the folder of all daemons, which the caller has made.
        find: returns the control program. Raises: SharingError.
        boot_id: the id of this boot.
        cgroup, shm_mib: see `daemon_processes.DaemonContext`.
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
            process = daemon_processes.running(folder, state, self._context())
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
        if left := daemon_processes.orphans(entry.folder, state, self._context()):
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
