"""Find the running processes of a device: its control daemon and its servers.

In: the record that was written before the daemon began, and its cgroup. Out: processes that are ours according to the
kernel. Never: trust in what a process reports about itself, or in a file that clients can write.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dra_driver.mps import cgroups, peer, processes, spawning
from dra_driver.mps.daemon_folder import SHM_MIB, DaemonFolder, DaemonRecord
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.processes import Origin, ProcessIdentity
from dra_driver.telemetry.logs import fields

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
    inside = cgroups.members(cgroup) if cgroup else []
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
    found, origin = peer.listener(folder.control), origin_of(context.program)
    return found if found is not None and origin is not None and processes.is_genuine(found, origin) else None


def origin_of(program: ControlProgram | None) -> Origin | None:
    """Return the origin that a daemon must have to be recognised as one that we started from this program."""
    found = spawning.executable(program) if program else None
    return Origin(processes.namespace_of(), found) if found else None
