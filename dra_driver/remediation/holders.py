"""Holders: who keeps a GPU from being acted on: claims, pods that outlive them, and processes.

In: the ledger, the claims that it does not know, /proc. Out: the claims and processes as people know them. No tenant's
text is shown unchecked: a process may call itself anything.
Source: cgroups(7), proc(5); Kubernetes names a pod's cgroup by its UID, and its folder of logs NAMESPACE_NAME_UID.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from dra_driver.model.names import gpu_name
from dra_driver.plugin.ledger.ledger import Ledger

_POD = re.compile(r"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})")
_BYTES = 16384
POD_LOGS = "1/root/var/log/pods"  # below /proc: the host's, seen through its first process


class GivenDevices(Protocol):
    """The devices that claims were given which the ledger does not know."""

    def names(self, *, is_patient: bool = True) -> frozenset[str]:
        """Return their names. Raises: DriverError."""


def claims_on(gpus: Collection[str], ledger: Ledger, given: GivenDevices, boot_id: str) -> tuple[str, ...]:
    """Return the claims that hold GPUs, by PCI addresses, or parts of them, and pods that outlive theirs.

    Claims with admin access hold nothing. Raises: DriverError.
    """
    roots = tuple(map(gpu_name, gpus))
    found = [one.full_name for one in ledger.records() if _touches(one.owned_names(), roots)]
    kept = (one for one in ledger.kept_back.of_boot(boot_id) if not one.is_over and _touches(one.devices, roots))
    found += [f"{one.namespace}/{one.name} (its pod still runs)" for one in kept]
    if not found:  # asked last, because it may cost a request
        found = [f"of {name}, which is not prepared yet" for name in sorted(given.names()) if _touches([name], roots)]
    return tuple(sorted(found))


def described(pids: Iterable[int], proc: Path) -> tuple[str, ...]:
    """Return processes as people read them: number, program and pod."""
    return tuple(_described(pid, proc) for pid in pids)


def _touches(names: Iterable[str], roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith((f"{root}-", f"{root}/")) for name in names for root in roots)


def _described(pid: int, proc: Path) -> str:
    program = "".join(one if one.isprintable() else "?" for one in _read(proc / str(pid) / "comm").strip())[:16]
    found = _POD.search(_read(proc / str(pid) / "cgroup"))
    pod = f" of pod {_pod_name(found[1].replace('_', '-').lower(), proc)}" if found else ""
    return f"{pid} ({program or 'unknown'}){pod}"


def _pod_name(uid: str, proc: Path) -> str:
    """Return a pod as NAMESPACE/NAME, or its UID where the host's logs can't be seen."""
    try:
        for folder in (proc / POD_LOGS).iterdir():
            if folder.name.endswith(f"_{uid}"):
                return "/".join(folder.name.split("_")[:2])
    except OSError:
        pass
    return f"UID {uid}"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
