"""The life of one device's control daemon, from its first file to its last.

Every step can be repeated, and after a kill between any two steps the next start or stop repairs what is left: the
record names the process before it becomes the daemon, and is removed after everything else is gone.

Never: a restart of a running daemon, because its clients would end with it. Never: a process that was found by its
environment, its command line or a file that clients can write.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from dra_driver.model.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import cgroups, control, daemon_processes, mounts, processes, spawning
from dra_driver.mps.control import Control
from dra_driver.mps.daemon_processes import DaemonSurroundings
from dra_driver.mps.folder import DaemonRecord, Folder
from dra_driver.mps.processes import Origin, ProcessIdentity
from dra_driver.mps.spawning import SpawnedProcess

log = logging.getLogger(__name__)

MULTI_USER = "-multiuser-server"
QUIT_S = 1  # for servers to end after `quit`
END_S = 1.0  # for a process to end after SIGTERM, and again after SIGKILL
_LEAST_S = 0.05


def start(
    at: Folder, device: SharedDevice, settings: MpsSettings, around: DaemonSurroundings, deadline: float
) -> DaemonRecord:
    """Return the record of a ready daemon, which was running or is started now. A failed first start is undone.

    Raises: SharingError("sharing.mps-other-settings") for a setting that a running daemon can't change, and for every
    other fault ("mps-not-ready", "mps-refused", "mps-no-program", "mps-no-permission", "mps-path-too-long").
    """
    program = around.program
    if program is None:
        raise SharingError("mps-no-program", "the driver has no MPS control program", retry=Retry.LATER)
    before = current(at, around)
    if before is not None and before.device.uuid != device.uuid:
        raise SharingError("mps-refused", f"{at.path} belongs to {before.device.uuid}, not {device.uuid}")
    process = daemon_processes.running(at, before, around)
    if process is not None and before is not None:
        _check_change(before, device, settings)
    state = _wanted(before, device, settings, around, process)
    try:
        at.make(shm_mib=around.shm_mib if state.is_mounted else None)
        if state.was_ready:
            at.sweep_shm()  # new clients must not find the files of earlier ones
        try:
            state = _make_ready(at, state, before, around, deadline)
        except SharingError:
            if process is None or process.is_alive():
                raise
            state = _make_ready(
                at, _without(state), before, around, deadline
            )  # the daemon ended while it was given commands
    except BaseException:
        if not state.was_ready:
            _undo(at, around)
        raise
    state = replace(state, was_ready=True)
    at.write(state)
    return state


def stop(at: Folder, around: DaemonSurroundings, deadline: float, *, is_gentle: bool = True) -> None:
    """End a device's daemon and its servers, and remove its folder; do nothing if they are already gone.

    A daemon that was never handed out has no clients and is ended without a grace period. A full disk is no obstacle.

    Raises: SharingError("sharing.mps-stuck", LATER) if a process does not end even by SIGKILL; NodeError.
    """
    has_record = at.read() is not None
    state = current(at, around)
    if state is not None and state.is_wanted:
        with suppress(NodeError):  # the disk may be full; if this process is killed now, the agent asks again
            at.write(replace(state, is_wanted=False))
    process = daemon_processes.running(at, state, around) if has_record else daemon_processes.unrecorded(at, around)
    if is_gentle and process is not None and around.program is not None:
        _quit(Control(around.program, at, process, deadline), process)
    left = processes.end_all(lambda: daemon_processes.all_of(at, state, process, around), END_S)
    if left:
        raise SharingError(
            "mps-stuck",
            f"processes {', '.join(str(one.pid) for one in left)} of the MPS daemon do not end",
            hint="they hang in the driver; a reset of the GPU or a reboot frees them",
            retry=Retry.LATER,
        )
    if cgroup := around.cgroup_of(at):
        cgroups.remove(cgroup)
    at.remove()


def current(at: Folder, around: DaemonSurroundings) -> DaemonRecord | None:
    """Return the record if it is from this boot, else None."""
    state = at.read()
    return state if state is not None and state.boot_id == around.boot_id else None


def _quit(speaker: Control, process: ProcessIdentity) -> None:
    with suppress(SharingError):  # the program is gone; signals end the daemon below
        if speaker.quit(QUIT_S):
            processes.wait_gone([process], QUIT_S + END_S)


def _wanted(
    before: DaemonRecord | None,
    device: SharedDevice,
    settings: MpsSettings,
    around: DaemonSurroundings,
    process: ProcessIdentity | None,
) -> DaemonRecord:
    """Return the record to start from: that of the running daemon, or a new one without a process."""
    if before is None or not before.was_ready:
        state = DaemonRecord(device, settings, around.boot_id, is_mounted=mounts.are_permitted())
    else:  # a folder handed out without file systems (by 0.1.0) has clients that would lose sight of it
        state = DaemonRecord(device, settings, around.boot_id, was_ready=True, is_mounted=before.is_mounted)
    if before is None:
        return state
    state = replace(state, former=before.former)
    if process is not None:
        return replace(state, process=process, origin=before.origin or daemon_processes.origin_of(around.program))
    return replace(state, former=tuple(one for one in before.daemons() if processes.kin([one])))


def _without(state: DaemonRecord) -> DaemonRecord:
    """Return the record after its daemon has ended."""
    return replace(state, process=None, origin=None, former=state.daemons())


def _make_ready(
    at: Folder, state: DaemonRecord, before: DaemonRecord | None, around: DaemonSurroundings, deadline: float
) -> DaemonRecord:
    """Make a daemon run with the wanted limits; a running one that refuses them keeps its old limits."""
    if state.process is None:
        return _make_new(at, state, around, deadline)
    assert around.program is not None  # noqa: S101 - `start` has checked it
    speaker = Control(around.program, at, state.process, deadline)
    speaker.wait_ready()
    try:
        speaker.set_limits(state.device, state.settings)
    except DriverError:
        if before is not None and before.was_ready:
            with suppress(DriverError):
                speaker.set_limits(before.device, before.settings)
        raise
    return state


def _make_new(at: Folder, state: DaemonRecord, around: DaemonSurroundings, deadline: float) -> DaemonRecord:
    """Start a daemon; end it if it does not accept its limits, since without them clients could use everything."""
    program, cgroup = around.program, around.cgroup_of(at)
    assert program is not None  # noqa: S101 - `start` has checked it
    at.clear_pipe()
    if cgroup:
        cgroups.make(cgroup)
    words = ["-f", *([MULTI_USER] if state.settings.multi_user else [])]
    with spawning.spawned(program, at, words, uuid=state.device.uuid, cgroup=cgroup) as new:
        state = replace(state, process=new.identity, origin=daemon_processes.origin_of(program))
        try:
            at.write(state)
            new.release(max(_LEAST_S, deadline - time.monotonic()))
            speaker = Control(program, at, new.identity, deadline)
            _await(speaker, new, at, state.device)
            runs = processes.executable_of(new.identity.pid)
            state = replace(state, origin=Origin(processes.namespace_of(), runs) if runs else state.origin)
            speaker.set_limits(state.device, state.settings)
        except BaseException:
            processes.end([new.identity], END_S)
            raise
    return state


def _await(speaker: Control, new: SpawnedProcess, at: Folder, device: SharedDevice) -> None:
    """Wait until a new daemon answers. Raises: SharingError with its output if it ended instead."""
    try:
        speaker.wait_ready()
    except SharingError as error:
        if new.identity.is_alive():
            raise
        said, status = spawning.words_of(at), new.status()
        text = f"the MPS control daemon for {device.name} ended at once: {said or f'status {status}'}"
        code = "mps-refused" if status and said else "mps-not-ready"
        raise SharingError(code, text, retry=Retry.LATER) from error


def _check_change(before: DaemonRecord, device: SharedDevice, settings: MpsSettings) -> None:
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
            f"the MPS daemon of {device.name} runs with a memory limit, which can be changed but not removed",
            hint="give all claims on the device a pinned memory limit",
            retry=Retry.LATER,
        )


def _undo(at: Folder, around: DaemonSurroundings) -> None:
    with suppress(DriverError):  # the next start, stop or recovery undoes what could not be undone now
        stop(at, around, time.monotonic(), is_gentle=False)
