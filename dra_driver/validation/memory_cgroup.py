"""A cgroup below this process's own that limits the memory of a test.

A test that takes too much memory is then ended on its own, before the limit of the agent's container is reached; at
that limit the kernel would end all processes of the container at once, because the kubelet sets memory.oom.group. On
cgroup v2 a cgroup with processes can't limit others below it, so this process first moves into a cgroup of its own. If
that is not permitted, no cgroup is made.
Source: kernel, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
TEST, AGENT = "dra-driver-validation", "dra-driver-agent"
PROCESSES, SUBTREE = "cgroup.procs", "cgroup.subtree_control"
RESERVE_BYTES = 32 << 20  # the part of the container's limit that is left for the agent to grow during a test


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """The names of the files of one version of cgroups."""

    limit: str
    swap: str
    usage: str
    cache: str  # in memory.stat: memory that the kernel frees when memory is short
    events: str


V1 = CgroupFiles(
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
    "memory.oom_control",
)  # fmt: skip
V2 = CgroupFiles("memory.max", "memory.swap.max", "memory.current", "inactive_file", "memory.events")


class MemoryCgroup:
    """The cgroup of one test."""

    def __init__(self, path: Path, files: CgroupFiles) -> None:
        self.path, self._files = path, files

    @property
    def was_exhausted(self) -> bool:
        """Return whether the kernel ended a process of the test because of the limit."""
        return _value(self.path / self._files.events, "oom_kill") > 0

    def remove(self, patience_s: float = 2.0) -> None:
        """End what is left of the test, and remove the cgroup; processes that can't be ended stay in it."""
        until = time.monotonic() + patience_s
        while self.path.exists():
            self._end_all()
            with suppress(OSError):
                self.path.rmdir()
                return
            if time.monotonic() >= until:
                return
            time.sleep(0.01)

    def _end_all(self) -> None:
        with suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")  # only on v2
        with suppress(OSError, ValueError):
            for pid in (self.path / PROCESSES).read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def room_below(limit: int, *, root: Path = ROOT, proc: Path = PROC) -> int:
    """Return how many bytes a test may take: `limit`, or less if this process's own cgroup has less left."""
    found = _own(root, proc)
    if found is None:
        return limit
    own, files = found
    try:
        maximum = int((own / files.limit).read_text())
        used = int((own / files.usage).read_text()) - _value(own / "memory.stat", files.cache)
    except (OSError, ValueError):  # a cgroup without a limit has "max" in this file
        return limit
    return min(limit, max(0, maximum - used - RESERVE_BYTES))


def make_cgroup(limit: int, *, root: Path = ROOT, proc: Path = PROC) -> MemoryCgroup | None:
    """Make the cgroup of a test that may take `limit` bytes; return None if that is not permitted."""
    found = _own(root, proc)
    if found is None:
        return None
    own, files = found
    try:
        if files is V2:
            own = _delegated(own)
        path = own / f"{TEST}-{os.getpid()}"
        _remove_left(own)
        path.mkdir(exist_ok=True)
        (path / files.limit).write_text(str(limit))
    except OSError:
        return None
    with suppress(OSError):
        (path / files.swap).write_text("0" if files is V2 else str(limit))
    with suppress(OSError):
        (path / "memory.oom.group").write_text("1")
    return MemoryCgroup(path, files)


def _remove_left(own: Path) -> None:
    """Remove the empty cgroups of processes that were killed while they tested."""
    for path in own.glob(f"{TEST}-*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            with suppress(OSError):
                path.rmdir()


def _delegated(own: Path) -> Path:
    """Return the cgroup below which a limit can be set, after this process has left it. Raises: OSError."""
    if own.name == AGENT:  # this process was moved before, or is a command that the runtime has put beside the agent
        own = own.parent
    if "memory" in (own / SUBTREE).read_text().split():
        return own
    with suppress(OSError):
        (own / SUBTREE).write_text("+memory")
        return own
    aside = own / AGENT
    aside.mkdir(exist_ok=True)
    (aside / PROCESSES).write_text("0")
    try:
        (own / SUBTREE).write_text("+memory")
    except OSError:  # other processes are in the cgroup too
        (own / PROCESSES).write_text("0")
        aside.rmdir()
        raise
    return own


def _own(root: Path, proc: Path) -> tuple[Path, CgroupFiles] | None:
    """Return the cgroup of this process in which memory is counted, with the names of its files."""
    try:
        rows = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    first = next((path for _, names, path in rows if "memory" in names.split(",")), None)
    if first is not None:
        return _seen(root / "memory", first, V1)
    second = next((path for _, names, path in rows if not names), None)
    return None if second is None else _seen(root, second, V2)


def _seen(mount: Path, path: str, files: CgroupFiles) -> tuple[Path, CgroupFiles] | None:
    """Return the cgroup at the path that the kernel reports, or the mount itself if it shows this container only."""
    me = str(os.getpid())
    for folder in (mount / path.lstrip("/"), mount):
        with suppress(OSError):
            if me in (folder / PROCESSES).read_text().split():
                return folder, files
    return None


def _value(file: Path, name: str) -> int:
    """Return the number after a name in a file; 0 if there is none."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            word, _, number = line.partition(" ")
            if word == name:
                return int(number)
    return 0
