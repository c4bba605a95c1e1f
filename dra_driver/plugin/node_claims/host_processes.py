"""Host processes: short descriptions of processes by pid, program and pod.

In: process ids and /proc of the host. Out: text. Names are cleaned first, because a process may give itself any name.
Source: cgroups(7), proc(5); Kubernetes names a pod's cgroup by its UID, and its folder of logs NAMESPACE_NAME_UID.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_POD = re.compile(r"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})")
_BYTES = 16384
POD_LOGS = "1/root/var/log/pods"  # below /proc: the host's folder, seen through the host's first process


def described(pids: Iterable[int], proc: Path) -> tuple[str, ...]:
    """Return a description of each process: its pid, program and pod."""
    return tuple(_described(pid, proc) for pid in pids)


def _described(pid: int, proc: Path) -> str:
    program = "".join(one if one.isprintable() else "?" for one in _read(proc / str(pid) / "comm").strip())[:16]
    found = _POD.search(_read(proc / str(pid) / "cgroup"))
    pod = f" of pod {_pod_name(found[1].replace('_', '-').lower(), proc)}" if found else ""
    return f"{pid} ({program or 'unknown'}){pod}"


def _pod_name(uid: str, proc: Path) -> str:
    """Return a pod as NAMESPACE/NAME, or its UID if the host's folder of logs can't be read."""
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
