"""Attribution: how much of a shared device each of its claims uses, by the processes of their pods.

In: the processes on a device, holders, /proc. Out: the memory and the multiprocessors' time that each holder uses. A
process belongs to the pod in whose cgroup it runs; if a pod has several shares of one device, all of its use counts for
the first. In MIG mode the driver does not measure the time of processes, so only memory can be attributed.
Source: cgroups(7), /proc/pid/cgroup; Kubernetes names a pod's cgroup by its UID, with either cgroup driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.metered import Measure, ProcessUse, Values
from dra_driver.metering.holders import Holder

_POD = re.compile(r"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})")
_BYTES = 16384


@dataclass(frozen=True, slots=True)
class HolderUse:
    """What the processes of one holder use; None for a value that the driver does not report."""

    memory_bytes: float | None
    sm_percent: float | None

    @property
    def values(self) -> Values:
        """Return the known values as quantities."""
        known: dict[str, float] = {}
        if self.memory_bytes is not None:
            known[Measure.MEMORY_USED_BYTES] = self.memory_bytes
        if self.sm_percent is not None:
            known[Measure.GPU_PERCENT] = self.sm_percent
        return known


def pod_of_process(pid: int, proc: Path) -> str:
    """Return the UID of the pod that a process belongs to; "" if it belongs to no pod or has ended."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            found = _POD.search(file.read(_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return found[1].replace("_", "-").lower() if found else ""


def uses_of(holders: tuple[Holder, ...], processes: Iterable[ProcessUse], proc: Path) -> dict[Holder, HolderUse]:
    """Return the use of each holder. A holder without a process uses 0 of what the driver reports for processes."""
    rows = tuple(processes)
    by_pod: dict[str, list[ProcessUse]] = {}
    for one in rows:
        by_pod.setdefault(pod_of_process(one.pid, proc), []).append(one)
    has_percents = any(one.sm_percent is not None for one in rows)
    found: dict[Holder, HolderUse] = {}
    taken: set[str] = {""}
    for holder in holders:
        pods = [uid.lower() for uid in holder.pod_uids if uid.lower() not in taken]
        taken.update(pods)
        own = [one for uid in pods for one in by_pod.get(uid, ())]
        found[holder] = HolderUse(_memory(own), sum(one.sm_percent or 0.0 for one in own) if has_percents else None)
    return found


def _memory(own: list[ProcessUse]) -> float | None:
    known = [one.memory_bytes for one in own if one.memory_bytes is not None]
    return float(sum(known)) if len(known) == len(own) else None
