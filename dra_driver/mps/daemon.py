"""The life of one device's control daemon, from its first file to its last.

Every step can be repeated, and after a kill between any two steps the next start or stop repairs what is left: the
process is recorded before it becomes the daemon, and the record is removed after everything else is gone.

Never: restarts a running daemon, because its clients would end with it. Never: looks for a process by its environment,
its command line or a file that clients can write.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from dra_driver.model.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import cgroups, daemon_processes, mounts, processes, spawning
from dra_driver.mps.control_client import ControlClient, memory_limit
from dra_driver.mps.daemon_folder import DaemonFolder, DaemonRecord
from dra_driver.mps.daemon_processes import DaemonContext
from dra_driver.mps.processes import Origin, ProcessIdentity
from dra_driver.mps.spawning import SpawnedProcess

log = logging.getLogger(__name__)

MULTI_USER = "-multiuser-server"
QUIT_S = 1  # how long servers have to end after `quit`
END_S = 1.0  # how long a process has to end after SIGTERM, and again after SIGKILL
_MIN_S = 0.05


def start(
    folder: DaemonFolder, device: SharedDevice, settings: MpsSettings, context: DaemonContext, deadline: float
) -> DaemonRecord:
    """Start a device's daemon unless it runs, set its limits, and return its record when it is ready.

    A first start that fails is undone. `deadline` is in monotonic seconds.
    Raises: SharingError("sharing.mps-other-settings") for a setting that a running daemon can't change, and
    "mps-not-ready", "mps-refused", "mps-no-program", "mps-no-permission" or "mps-path-too-long".
    """
    program = context.program
    if program is None:
        raise SharingError("mps-no-program", "the GPU driver has no MPS control program", retry=Retry.LATER)
    before = current(folder, context)
    if before is not None and before.device.uuid != device.uuid:
        raise SharingError("mps-refused", f"{folder.path} belongs to {before.device.uuid}, not {device.uuid}")
    process = daemon_processes.running(folder, before, context)
    if process is not None and before is not None:
        _check_change(before, device, settings)
    state = _initial_record(before, device, settings, context, process)
    try:
        folder.make(shm_mib=context.shm_mib if state.is_mounted else None)
        if state.was_ready:
            folder.sweep_shm()  # new clients must not find the files of earlier ones
        state = _ensure_ready(folder, state, before, context, deadline)
    except BaseException:
        if not state.was_ready:
            _undo(folder, context)
        raise
    state = replace(state, was_ready=True)
    folder.write(state)
    return state


def stop(folder: DaemonFolder, context: DaemonContext, deadline: float, *, is_gentle: bool = True) -> None:
    """End a device's daemon and its servers, and remove its folder; do nothing if they are already gone.

    With `is_gentle` false the daemon is not asked to end first, because it has no clients yet. A full disk does not
    prevent this. Raises: SharingError("sharing.mps-stuck", LATER) if a process survives even SIGKILL; NodeError.
    """
    has_record = folder.read() is not None
    state = current(folder, context)
    if state is not None and state.is_wanted:
        with suppress(NodeError):  # the disk may be full; if this process is killed now, the agent repeats its command
            folder.write(replace(state, is_wanted=False))
    process = (
        daemon_processes.running(folder, state, context) if has_record else daemon_processes.unrecorded(folder, context)
    )
    if is_gentle and process is not None and context.program is not None:
        _quit(ControlClient(context.program, folder, process, deadline), process)
    left = processes.end_all(lambda: daemon_processes.all_processes(folder, state, process, context), END_S)
    if left:
        raise SharingError(
            "mps-stuck",
            f"processes {', '.join(str(one.pid) for one in left)} of the MPS daemon do not end",
            hint="they hang in the driver; a reset of the GPU or a reboot frees them",
            retry=Retry.LATER,
        )
    if cgroup := context.cgroup_of(folder):
        cgroups.remove(cgroup)
    folder.remove()


def current(folder: DaemonFolder, context: DaemonContext) -> DaemonRecord | None:
    """Return the record if it is from this boot, else None."""
    state = folder.read()
    return state if state is not None and state.boot_id == context.boot_id else None


def _quit(control: ControlClient, process: ProcessIdentity) -> None:
    with suppress(SharingError):  # the control program is gone; then signals end the daemon
        if control.quit(QUIT_S):
            processes.wait_gone([process], QUIT_S + END_S)


def _initial_record(
    before: DaemonRecord | None,
    device: SharedDevice,
    settings: MpsSettings,
    context: DaemonContext,
    process: ProcessIdentity | None,
) -> DaemonRecord:
    """Return the record with which a start begins: that of the running daemon, or a new one without a process."""
    if before is None or not before.was_ready:
        state = DaemonRecord(device, settings, context.boot_id, is_mounted=mounts.are_permitted())
    else:  # clients of a folder without mounts (made by 0.1.0) would no longer see it below a new mount
        state = DaemonRecord(device, settings, context.boot_id, was_ready=True, is_mounted=before.is_mounted)
    if before is None:
        return state
    state = replace(state, former=before.former)
    if process is not None:
        return replace(state, process=process, origin=before.origin or daemon_processes.origin_of(context.program))
    return replace(state, former=tuple(one for one in before.daemons() if processes.started_by([one])))


def _after_end(state: DaemonRecord) -> DaemonRecord:
    """Return the record for a daemon that has ended."""
    return replace(state, process=None, origin=None, former=state.daemons())


def _ensure_ready(
    folder: DaemonFolder, state: DaemonRecord, before: DaemonRecord | None, context: DaemonContext, deadline: float
) -> DaemonRecord:
    """Bring a daemon to run with the wanted limits; a new one if it ends while it is given commands."""
    try:
        return _make_ready(folder, state, before, context, deadline)
    except SharingError:
        if state.process is None or state.process.is_alive():
            raise
        return _make_ready(folder, _after_end(state), before, context, deadline)


def _make_ready(
    folder: DaemonFolder, state: DaemonRecord, before: DaemonRecord | None, context: DaemonContext, deadline: float
) -> DaemonRecord:
    """Bring a daemon to run with the wanted limits; one that was running and refuses them keeps its old limits."""
    if state.process is None:
        return _start_new(folder, state, context, deadline)
    assert context.program is not None  # noqa: S101 - `start` has checked it
    control = ControlClient(context.program, folder, state.process, deadline)
    control.wait_ready()
    try:
        control.set_limits(state.device, state.settings)
    except DriverError:
        if before is not None and before.was_ready:
            with suppress(DriverError):
                control.set_limits(before.device, before.settings)
        raise
    return state


def _start_new(folder: DaemonFolder, state: DaemonRecord, context: DaemonContext, deadline: float) -> DaemonRecord:
    """Start a daemon; end it if it refuses its limits, since without them its clients could use the whole GPU."""
    program, cgroup = context.program, context.cgroup_of(folder)
    assert program is not None  # noqa: S101 - `start` has checked it
    folder.clear_pipe()
    if cgroup:
        cgroups.make(cgroup)
    words = ["-f", *([MULTI_USER] if state.settings.multi_user else [])]
    with spawning.spawned(program, folder, words, uuid=state.device.uuid, cgroup=cgroup) as new:
        state = replace(state, process=new.identity, origin=daemon_processes.origin_of(program))
        try:
            folder.write(state)
            new.release(max(_MIN_S, deadline - time.monotonic()))
            control = ControlClient(program, folder, new.identity, deadline)
            _wait_until_ready(control, new, state.device)
            runs = processes.executable_of(new.identity.pid)
            state = replace(state, origin=Origin(processes.namespace_of(), runs) if runs else state.origin)
            control.set_limits(state.device, state.settings)
        except BaseException:
            processes.end([new.identity], END_S)
            raise
    return state


def _wait_until_ready(control: ControlClient, new: SpawnedProcess, device: SharedDevice) -> None:
    """Wait until a new daemon answers. Raises: SharingError, with the daemon's output if it ended instead."""
    try:
        control.wait_ready()
    except SharingError as error:
        if new.identity.is_alive():
            raise
        answer, status = new.last_output(), new.status()
        text = f"the MPS control daemon for {device.name} ended at once: {answer or f'status {status}'}"
        code = "mps-refused" if status and answer else "mps-not-ready"
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
    if memory_limit(device, was) is not None and memory_limit(device, settings) is None:
        raise SharingError(
            "mps-other-settings",
            f"the MPS daemon of {device.name} runs with a memory limit, which can be changed but not removed",
            hint="give all claims on the device a pinned memory limit",
            retry=Retry.LATER,
        )


def _undo(folder: DaemonFolder, context: DaemonContext) -> None:
    with suppress(DriverError):  # what can't be undone now is undone by the next start, stop or recovery
        stop(folder, context, time.monotonic(), is_gentle=False)
