"""Daemon: the control daemon of one device, from its first file to its last.

Every step can be repeated, and a kill between any two leaves what the next start or stop sets right: the record is
written before the daemon is started, and removed after everything else is gone.

Never: a restart of a daemon that runs. Clients are its own affair, and end with it.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.model.errors import DriverError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import control, launch, processes
from dra_driver.mps.control import Control
from dra_driver.mps.folder import Folder, State
from dra_driver.mps.launch import Program
from dra_driver.mps.processes import Identity
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MULTI_USER = "-multiuser-server"
QUIT_S = 1  # what servers get to end after `quit`
END_S = 1.0  # what a process gets after SIGTERM, and again after SIGKILL
_SETTLE_S = 2.0  # for a daemon whose start was interrupted between fork and pid file
_PID_FILE_S = 0.5  # for the daemon's pid file, which says which of two processes of a start is the one that stays
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all daemons of one supervisor have in common.

    `program` is None while the driver has none. `cgroup` is a cgroup (v2) that daemons are moved into, so that the end
    of this process's container is not theirs.
    """

    program: Program | None
    boot_id: str
    cgroup: Path | None = None


def start(at: Folder, device: SharedDevice, settings: MpsSettings, around: Surroundings, deadline: float) -> State:
    """Give the record of a ready daemon: found, or made now. What fails at its first start is undone.

    Raises: SharingError("sharing.mps-other-settings") for what a running daemon can't change, and for all else that
    goes wrong ("mps-not-ready", "mps-refused", "mps-no-program", "mps-no-permission", "mps-path-too-long").
    """
    program = around.program
    if program is None:
        raise SharingError("mps-no-program", "the driver has no MPS control program", retry=Retry.LATER)
    before = current(at, around)
    if before is not None and before.device.uuid != device.uuid:
        raise SharingError("mps-refused", f"{at.path} belongs to {before.device.uuid}, not {device.uuid}")
    process = running(at, before)
    if process is not None and before is not None:
        _check_change(before, device, settings)
    state = State(device, settings, around.boot_id, was_ready=bool(before and before.was_ready), process=process)
    speaker = Control(program, at, deadline)
    try:
        at.make(with_tmpfs=program.is_private)
        try:
            state = _make_ready(at, state, before, around, speaker)
        except SharingError:
            if process is None or process.is_alive():
                raise
            state = _make_ready(at, replace(state, process=None), before, around, speaker)  # it ended under our words
    except BaseException:
        if not state.was_ready:
            _undo(at, around)
        raise
    state = replace(state, was_ready=True)
    at.write(state)
    return state


def stop(at: Folder, around: Surroundings, deadline: float, *, is_gentle: bool = True) -> None:
    """End a device's daemon and its servers, and remove its folder; what is gone already is fine.

    A daemon that was never handed out needs no gentleness: it has no clients.

    Raises: SharingError("sharing.mps-stuck", LATER) when a process does not even end by SIGKILL; NodeError.
    """
    state = at.read()
    if state is not None and state.is_wanted:
        at.write(replace(state, is_wanted=False))
    process = running(at, state) if is_gentle and around.program is not None else None
    if process is not None and around.program is not None and Control(around.program, at, deadline).quit(QUIT_S):
        processes.wait_gone([process], QUIT_S + END_S)
    left = processes.end(processes.marked(str(at.path)), END_S)
    if left:
        raise SharingError(
            "mps-stuck",
            f"processes {', '.join(str(one.pid) for one in left)} of the MPS daemon do not end",
            hint="they hang in the driver; a reset of the GPU or a reboot frees them",
            retry=Retry.LATER,
        )
    at.remove()


def current(at: Folder, around: Surroundings) -> State | None:
    """Give the record, if it is of this boot."""
    state = at.read()
    return state if state is not None and state.boot_id == around.boot_id else None


def running(at: Folder, state: State | None) -> Identity | None:
    """Find the folder's control daemon: by the record, else by our mark and its arguments (a start was interrupted)."""
    if state is not None and state.process is not None and state.process.is_alive():
        return state.process
    began = time.monotonic()
    while daemons := _daemons(at):
        if one := _find(at, began):
            return one
        if time.monotonic() > began + _SETTLE_S:
            log.warning("interrupted start ended", extra=fields(file=str(at.path), count=len(daemons)))
            processes.end(daemons, END_S)
            return None
        time.sleep(_POLL_S)
    return None


def orphans(at: Folder, state: State) -> list[Identity]:
    """List servers whose control daemon is gone: their clients go on, new ones can't join them."""
    daemons = [state.process, *_daemons(at)]
    return [one for one in processes.marked(str(at.path)) if one not in daemons]


def _make_ready(at: Folder, state: State, before: State | None, around: Surroundings, speaker: Control) -> State:
    """Have a daemon run at the wanted limits; one that had others keeps those when it refuses the new."""
    if state.process is None:
        return _make_new(at, state, around, speaker)
    _move(state.process, around)
    speaker.wait_ready(state.process)
    try:
        speaker.set_limits(state.device, state.settings)
    except DriverError:
        if before is not None and before.was_ready:
            with suppress(DriverError):
                speaker.set_limits(before.device, before.settings)
        raise
    return state


def _make_new(at: Folder, state: State, around: Surroundings, speaker: Control) -> State:
    """Start a daemon; one that does not take its limits is ended, for without them it would give clients everything."""
    at.write(state)
    process = _launch(at, state, speaker)
    state = replace(state, process=process)
    at.write(state)
    try:
        _move(process, around)
        speaker.wait_ready(process)
        speaker.set_limits(state.device, state.settings)
    except BaseException:
        processes.end([process], END_S)
        raise
    return state


def _launch(at: Folder, state: State, speaker: Control) -> Identity:
    at.forget_pid()
    words = ["-d", *([MULTI_USER] if state.settings.multi_user else [])]
    program, seconds = speaker.program, max(_POLL_S, speaker.left())
    outcome = launch.start_daemon(program, at, words, uuid=state.device.uuid, seconds=seconds)
    if outcome.status is None:
        text = f"the MPS control daemon for {state.device.name} does not start in time"
        raise SharingError("mps-not-ready", text, retry=Retry.LATER)
    if outcome.status != 0:
        said = outcome.words[:300] or f"status {outcome.status}"
        text = f"the MPS control daemon for {state.device.name} does not start: {said}"
        raise SharingError("mps-refused", text, hint=_last_line(at), retry=Retry.LATER)
    began = time.monotonic()
    while (process := _find(at, began)) is None:
        if speaker.left() <= 0:
            text = f"the MPS control daemon for {state.device.name} ended at once"
            raise SharingError("mps-not-ready", text, hint=_last_line(at), retry=Retry.LATER)
        time.sleep(_POLL_S)
    return process


def _daemons(at: Folder) -> list[Identity]:
    """List control daemons of the folder, and what is on the way to become one."""
    return [one for one in processes.marked(str(at.path)) if "-d" in processes.arguments(one)]


def _find(at: Folder, began: float) -> Identity | None:
    """Give the daemon that was started at `began` at the latest: by its pid file; in time, the only one there is."""
    named = processes.identify_marked(at.pid(), str(at.path))
    if named is not None and "-d" in processes.arguments(named):
        return named
    if time.monotonic() > began + _PID_FILE_S and len(daemons := _daemons(at)) == 1:
        return daemons[0]
    return None


def _move(process: Identity, around: Surroundings) -> None:
    """Move a daemon to the cgroup of daemons. Raises: SharingError("sharing.mps-cgroup")."""
    if around.cgroup is None:
        return
    try:
        around.cgroup.mkdir(parents=True, exist_ok=True)
        (around.cgroup / "cgroup.procs").write_text(str(process.pid))
    except OSError as exc:
        raise SharingError(
            "mps-cgroup",
            f"the MPS daemon can't be moved to {around.cgroup}: {exc.strerror}",
            hint="mount the host's cgroup v2 tree writable into the supervisor, or leave --mps-cgroup empty",
            retry=Retry.LATER,
        ) from exc


def _check_change(before: State, device: SharedDevice, settings: MpsSettings) -> None:
    was = before.settings
    if was.multi_user != settings.multi_user and before.was_ready:
        mode = "multi-user" if was.multi_user else "single-user"
        raise SharingError(
            "mps-other-settings",
            f"the MPS daemon of {device.name} runs in {mode} mode, which can't change under its clients",
            hint="give all claims on the device the same multiUser",
            retry=Retry.LATER,
        )
    if control.memory_limit(device, was) is not None and control.memory_limit(device, settings) is None:
        raise SharingError(
            "mps-other-settings",
            f"the MPS daemon of {device.name} runs with a memory limit, which can be changed but not taken away",
            hint="give all claims on the device a pinned memory limit",
            retry=Retry.LATER,
        )


def _undo(at: Folder, around: Surroundings) -> None:
    with suppress(DriverError):  # what could not be undone now is by the next start, stop or recovery
        stop(at, around, time.monotonic(), is_gentle=False)


def _last_line(at: Folder) -> str:
    try:
        lines = (at.log / "control.log").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return f"its log ends with: {lines[-1][:200]}" if lines else ""
