"""The life of one device's control daemon, from its first file to its last.

Every step can be repeated, and after a kill between any two steps the next start or stop repairs what is left: the
process is recorded before it becomes the daemon, and the record is removed after everything else is gone.

Never: restarts a running daemon, because its clients would end with it. Never: looks for a process by its environment,
its command line or a file that clients can write.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.base.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import MpsSettings, SharedDevice
from dra_driver.node.mps import daemon_folder, launch, processes
from dra_driver.node.mps.control_client import ControlClient, memory_limit
from dra_driver.node.mps.daemon_folder import SHM_MIB, DaemonFolder, DaemonRecord
from dra_driver.node.mps.launch import ControlProgram, SpawnedProcess
from dra_driver.node.mps.processes import Origin, ProcessIdentity

# A cgroup for each device's daemon, below the configured one; the process enters it before its program begins.

PROCESSES = "cgroup.procs"
HINT = "mount the host's cgroup v2 tree writable into the supervisor, or leave --mps-cgroup empty"


def has_version_2(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether cgroups v2 are mounted at all, or `path` lies in a cgroup; true if that can't be read."""
    nearest = next((folder for folder in (path, *path.parents) if os.path.isdir(folder)), "/")  # noqa: PTH112
    if Path(nearest, PROCESSES).exists():
        return True
    try:
        return any(line.split()[2:3] == ["cgroup2"] for line in mounts.read_text(errors="replace").splitlines())
    except OSError:
        return True


def make(path: Path) -> None:
    """Make a device's cgroup. Raises: SharingError("sharing.mps-cgroup")."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / PROCESSES).exists():
            return
        reason = "it is not a cgroup (v2)"
    except OSError as exc:
        reason = str(exc.strerror)
    raise SharingError("mps-cgroup", f"cgroup {path} can't be made: {reason}", hint=HINT, retry=Retry.LATER)


def enter(path: Path) -> None:
    """Move the calling process into the cgroup. Raises: OSError."""
    fd = os.open(path / PROCESSES, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def members(path: Path) -> list[ProcessIdentity]:
    """Return the running processes of a cgroup; none if there is no cgroup."""
    seen = [found for pid in _pids(path) if (found := processes.identify(pid))]
    still = _pids(path)  # a process identified above is a member only if its pid is still listed
    return [one for one in seen if one.pid in still and one.is_alive()]


def remove(path: Path) -> None:
    """Remove a device's cgroup; do nothing if it is busy or gone."""
    with suppress(OSError):
        path.rmdir()


def _pids(path: Path) -> set[int]:
    try:
        return {int(word) for word in (path / PROCESSES).read_text().split()} - {0}
    except (OSError, ValueError):
        return set()


# Find the running processes of a device: its control daemon and its servers.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """What all daemons of one supervisor have in common.

    `program` is None while the GPU driver has no control program. Each daemon has its own cgroup (v2) below `cgroup`,
    so that it survives the end of this process's container. `shm_mib` is the most that clients of a device may store in
    /dev/shm, in MiB.
    """

    program: ControlProgram | None
    boot_id: str
    cgroup: Path | None = None
    shm_mib: int = SHM_MIB

    def cgroup_of(self, folder: DaemonFolder) -> Path | None:
        """Return the cgroup of a device's daemon."""
        return self.cgroup / folder.key if self.cgroup else None


def running(folder: DaemonFolder, state: DaemonRecord | None, context: DaemonContext) -> ProcessIdentity | None:
    """Return the folder's control daemon if the recorded process is still running and the same one, else None.

    Version 0.1.0 recorded no origin, and found the daemon in a way in which another process could be mistaken for it.
    Such a process is accepted only if it runs our control program in our PID namespace.
    """
    if state is None or state.process is None:
        return None
    origin = state.origin or origin_of(context.program)
    if origin is not None and processes.is_genuine(state.process, origin):
        return state.process
    if state.process.is_alive():
        log.warning(
            "recorded process is not our MPS daemon; it is left alone",
            extra=fields(device=state.device.name, pid=state.process.pid, file=str(folder.path)),
        )
    return None


def orphans(folder: DaemonFolder, state: DaemonRecord, context: DaemonContext) -> list[ProcessIdentity]:
    """Return servers whose control daemon is gone: their clients keep working, but no new client can connect."""
    return [one for one in _started_by_daemons(folder, state, context) if one != state.process]


def _started_by_daemons(
    folder: DaemonFolder, state: DaemonRecord | None, context: DaemonContext
) -> list[ProcessIdentity]:
    """Return the processes that the device's daemons have started, found by their cgroup and by their parents."""
    cgroup = context.cgroup_of(folder)
    inside = members(cgroup) if cgroup else []
    if state is None or (state.origin is not None and state.origin.namespace != processes.namespace_of()):
        return inside
    return [*inside, *(one for one in processes.started_by(state.daemons()) if one not in inside)]


def all_processes(
    folder: DaemonFolder, state: DaemonRecord | None, process: ProcessIdentity | None, context: DaemonContext
) -> list[ProcessIdentity]:
    """Return all processes of a device: the control daemon, and those that it has started."""
    alone = [process] if process is not None and process.is_alive() else []
    started_by = [*_started_by_daemons(folder, state, context), *(processes.started_by(alone) if state is None else ())]
    return [*alone, *(one for one in started_by if one not in alone)]


def unrecorded(folder: DaemonFolder, context: DaemonContext) -> ProcessIdentity | None:
    """Return a daemon whose record was lost: it listens on the folder's socket as our user, and runs our program."""
    found, origin = launch.listener(folder.control), origin_of(context.program)
    return found if found is not None and origin is not None and processes.is_genuine(found, origin) else None


def origin_of(program: ControlProgram | None) -> Origin | None:
    """Return the origin that a daemon must have to be recognised as one that we started from this program."""
    found = launch.executable(program) if program else None
    return Origin(processes.namespace_of(), found) if found else None


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
    process = running(folder, before, context)
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
    process = running(folder, state, context) if has_record else unrecorded(folder, context)
    if is_gentle and process is not None and context.program is not None:
        _quit(ControlClient(context.program, folder, process, deadline), process)
    left = processes.end_all(lambda: all_processes(folder, state, process, context), END_S)
    if left:
        raise SharingError(
            "mps-stuck",
            f"processes {', '.join(str(one.pid) for one in left)} of the MPS daemon do not end",
            hint="they hang in the driver; a reset of the GPU or a reboot frees them",
            retry=Retry.LATER,
        )
    if cgroup := context.cgroup_of(folder):
        remove(cgroup)
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
        state = DaemonRecord(device, settings, context.boot_id, is_mounted=daemon_folder.are_permitted())
    else:  # clients of a folder without mounts (made by 0.1.0) would no longer see it below a new mount
        state = DaemonRecord(device, settings, context.boot_id, was_ready=True, is_mounted=before.is_mounted)
    if before is None:
        return state
    state = replace(state, former=before.former)
    if process is not None:
        return replace(state, process=process, origin=before.origin or origin_of(context.program))
    return replace(state, former=tuple(daemon for daemon in before.daemons() if processes.started_by([daemon])))


def _after_end(state: DaemonRecord) -> DaemonRecord:
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
        make(cgroup)
    words = ["-f", *([MULTI_USER] if state.settings.multi_user else [])]
    with launch.spawned(program, folder, words, uuid=state.device.uuid, cgroup=cgroup) as new:
        state = replace(state, process=new.identity, origin=origin_of(program))
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
