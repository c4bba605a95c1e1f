"""Leftovers: what a node has that no claim owns any more.

In: a storm whose claims have all ended. Out: a line for each CDI file, partition, time slice, driver, mount, socket,
lease, cgroup and process that is still there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dra_driver.simulator.store import LEASES
from tests.storm.support.node.devices import ADDRESSES

_CGROUPS = Path("/sys/fs/cgroup")


def leftovers(storm: Any, *, has_agent: bool) -> list[str]:
    """Return what is left, beside the sockets of an agent that still runs."""
    found = [f"left behind: {what}" for what in _of_claims(storm)]
    if not has_agent:
        found += [f"left behind: {what}" for what in _of_agents(storm)]
    return found


def _of_claims(storm: Any) -> Iterator[str]:
    machine, kubelet = storm.machine, storm.kubelet
    yield from (f"CDI file {path.name}" for path in kubelet.cdi_dir.rglob("*") if path.is_file())
    if not storm.is_static:
        yield from (f"partition {one}" for one in sorted(machine.partitions()))
    if machine.time_slices():
        yield "a time slice"
    drivers = {address: machine.driver_of(address) for address in ADDRESSES}
    yield from (f"driver {driver!r} of {address}" for address, driver in drivers.items() if driver != "nvidia")
    yield from (f"mount {target}" for target in sorted(set(mounts()) - storm.mounts))
    yield from (f"lease {name}" for name in _leases(storm.api))
    yield from (f"cgroup {path}" for path in cgroups() - storm.cgroups if _is_of(path, storm.agents.pids))


def _of_agents(storm: Any) -> Iterator[str]:
    for folder in (storm.data, storm.kubelet.registrar_dir):
        yield from (f"socket {path.name}" for path in folder.rglob("*") if path.is_socket())
    yield from (f"process {pid}: {command}" for pid, command in _processes() if "dra_driver" in command)


def mounts() -> Iterator[str]:
    """Yield where file systems are mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split(" ")[4]


def _leases(api: Any) -> Iterator[str]:
    for lease in api.items(LEASES):
        if (lease.get("spec") or {}).get("holderIdentity"):
            yield lease["metadata"]["name"]


def cgroups() -> set[Path]:
    """Return the control groups that agents have made for programs of theirs, on this machine and at any time."""
    return {Path(root, name) for root, names, _ in os.walk(_CGROUPS) for name in names if name.startswith("dra-")}


def _is_of(cgroup: Path, pids: Collection[int]) -> bool:
    """Return whether one of these processes made a control group: its name ends with the agent's process."""
    return cgroup.name.rpartition("-")[2] in map(str, pids)


def _processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            yield int(entry.name), command
