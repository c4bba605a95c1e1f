"""The process of one test: it is started, its output is read, and it is ended in time.

In: what to run, a deadline. Out: its messages and how it ended. A process that can't be ended, because the kernel waits
for the device, is left running, so that the agent does not wait for it forever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A cgroup below this process's own that limits the memory of a test.

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


OUTPUT_BYTES = 64 * 1024
END_SECONDS = 2.0  # how long a process may take to end once it was killed
_LAUNCH = str(Path(__file__).with_name("launch.py"))
_left_behind: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """What to run: a module with its request, or a command. `memory` is in bytes; `deadline_s` counts from the start.

    `environment` is complete. `inherited` are file descriptors that the process keeps open.
    """

    deadline_s: float
    memory: int
    environment: Mapping[str, str]
    module: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    argv: Sequence[str] = ()
    inherited: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the process ended. `status` is negative for a signal, and None for a process that did not end.

    `verdict` is the verdict that it printed, if any; `step` is the last step that it began; `output` is the end of
    everything else that it printed.
    """

    status: int | None
    seconds: float
    verdict: Mapping[str, Any] | None = None
    step: str = ""
    output: str = ""
    is_late: bool = False
    is_out_of_memory: bool = False


class TestChild:
    """The process of one test. Not thread-safe, except for `kill`."""

    __test__ = False

    def __init__(self, order: ChildOrder, cgroup: MemoryCgroup | None) -> None:
        self._order, self._cgroup = order, cgroup
        self._began = time.monotonic()
        self._step, self._rest = "", b""
        self._verdict: Mapping[str, Any] | None = None
        self._output: list[str] = []
        self._process = self._started()

    @property
    def pid(self) -> int:
        """Return the process's id, which is also its group's."""
        return self._process.pid

    def kill(self) -> None:
        """End the process and its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, on_step: Callable[[str], None]) -> ChildEnd:
        """Read the output until the process ends or its deadline is over; call `on_step` with each step."""
        try:
            is_late = not self._listen(self._began + self._order.deadline_s, on_step)
        finally:
            self.kill()  # this also ends the processes that it has started
            status = self._reaped()
            seconds = time.monotonic() - self._began
        is_exhausted = self._cgroup is not None and self._cgroup.was_exhausted
        output = "\n".join(self._output)[-1000:]
        return ChildEnd(status, seconds, self._verdict, self._step, output, is_late, is_exhausted)

    def _started(self) -> subprocess.Popen[bytes]:
        order = self._order
        spec = {
            "parent": os.getpid(),
            "cgroup": str(self._cgroup.path) if self._cgroup else "",
            "memory": order.memory,
            "deadline": order.deadline_s + END_SECONDS,
            "module": order.module,
            "request": dict(order.request),
            "argv": list(order.argv),
        }
        _reap_left_behind()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _LAUNCH, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(order.environment),
            cwd="/",
            pass_fds=tuple(order.inherited),
            process_group=0,
        )

    def _listen(self, until: float, on_step: Callable[[str], None]) -> bool:
        """Read the output of the process; return whether it ended in time."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        output, life = self._process.stdout.fileno(), os.pidfd_open(self._process.pid)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        poll.register(life, select.POLLIN)
        read = 0
        try:
            while (left := until - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(left * 1000)}
                if output in ready:
                    part = os.read(output, 4096)
                    read += len(part)
                    if part and read <= OUTPUT_BYTES:
                        self._add_output(part, on_step)
                    elif not part:
                        poll.unregister(output)
                elif life in ready:
                    return True
            return False
        finally:
            os.close(life)

    def _add_output(self, part: bytes, on_step: Callable[[str], None]) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            message = _object(text)
            if "verdict" in message:
                self._verdict = message
            elif isinstance(message.get("step"), str):
                self._step = message["step"]
                on_step(self._step)
            elif text.strip():
                self._output.append(text)

    def _reaped(self) -> int | None:
        process = self._process
        if process.stdout is not None:
            process.stdout.close()
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _left_behind.append(process)
            return None


def _object(text: str) -> Mapping[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _reap_left_behind() -> None:
    _left_behind[:] = [one for one in _left_behind if one.poll() is None]
