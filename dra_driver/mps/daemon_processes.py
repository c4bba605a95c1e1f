"""Find which running processes are a device's control daemon and its servers.

In: the record that was written before the daemon began, and its cgroup. Out: processes that are ours according to the
kernel. Never: the claim of a process itself, or of a file that clients can write.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from dra_driver.mps import cgroups, peer, processes, spawning
from dra_driver.mps.folder import SHM_MIB, DaemonRecord, Folder
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.processes import Origin, ProcessIdentity
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonSurroundings:
    """What all daemons of one supervisor have in common.

    `program` is None while the driver has none. Each daemon has its own cgroup (v2) below `cgroup`, so that it survives
    the end of this process's container. `shm_mib` is the most that clients of a device may have in /dev/shm, in MiB.
    """

    program: ControlProgram | None
    boot_id: str
    cgroup: Path | None = None
    shm_mib: int = SHM_MIB

    def cgroup_of(self, at: Folder) -> Path | None:
        """Return the cgroup of a device's daemon."""
        return self.cgroup / at.key if self.cgroup else None


def running(at: Folder, state: DaemonRecord | None, around: DaemonSurroundings) -> ProcessIdentity | None:
    """Return the folder's control daemon if the recorded process is still the same one, else None.

    A daemon of 0.1.0 was recorded without its origin, and only after another process may have been mistaken for it: it
    is kept only if it runs our control program in our PID namespace.
    """
    if state is None or state.process is None:
        return None
    origin = state.origin or origin_of(around.program)
    if origin is not None and processes.is_genuine(state.process, origin):
        return state.process
    if state.process.is_alive():
        log.warning(
            "recorded process is not our MPS daemon, and is left alone",
            extra=fields(device=state.device.name, pid=state.process.pid, file=str(at.path)),
        )
    return None


def orphans(at: Folder, state: DaemonRecord, around: DaemonSurroundings) -> list[ProcessIdentity]:
    """Return servers whose control daemon is gone: their clients keep working, but new ones can't join."""
    return [one for one in _kin(at, state, around) if one != state.process]


def _kin(at: Folder, state: DaemonRecord | None, around: DaemonSurroundings) -> list[ProcessIdentity]:
    """Return the processes that the device's daemons have started, found by cgroup and by parent."""
    cgroup = around.cgroup_of(at)
    inside = cgroups.members(cgroup) if cgroup else []
    if state is None or (state.origin is not None and state.origin.namespace != processes.namespace_of()):
        return inside
    return [*inside, *(one for one in processes.kin(state.daemons()) if one not in inside)]


def all_of(
    at: Folder, state: DaemonRecord | None, process: ProcessIdentity | None, around: DaemonSurroundings
) -> list[ProcessIdentity]:
    """Return all processes to end: the control daemon, and those that it has started."""
    alone = [process] if process is not None and process.is_alive() else []
    kin = [*_kin(at, state, around), *(processes.kin(alone) if state is None else ())]
    return [*alone, *(one for one in kin if one not in alone)]


def unrecorded(at: Folder, around: DaemonSurroundings) -> ProcessIdentity | None:
    """Return a daemon whose record was lost: it listens there as our user, and runs our program in our namespace."""
    found, origin = peer.listener(at.control), origin_of(around.program)
    return found if found is not None and origin is not None and processes.is_genuine(found, origin) else None


def origin_of(program: ControlProgram | None) -> Origin | None:
    """Return the origin that a daemon of this program must have in order to be recognised as the supervisor's own."""
    found = spawning.executable(program) if program else None
    return Origin(processes.namespace_of(), found) if found else None
