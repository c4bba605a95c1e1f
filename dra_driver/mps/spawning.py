"""Start a control daemon, from the fork until its program runs, so that its identity is known from the first moment.

In: the program, a device's folder and cgroup. Out: a child that waits until its identity is on disk, then becomes the
program in the foreground (`-f`): the daemon is the very process that was forked here, and its pid can't be reused while
we hold it. Never: a process that was found by searching.
Source: NVIDIA Multi-Process Service, nvidia-cuda-mps-control -f and its environment variables.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps import children, client_files, launch, processes
from dra_driver.mps.folder import Folder
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.processes import Inode, ProcessIdentity

OUTPUT = "output.log"  # the program's output in the foreground; it also writes its own logs
_PRELUDE = Path(__file__).with_name("prelude.py")
_WORDS_BYTES = 2048
_REPORT_BYTES = 4096


class SpawnedProcess:
    """A child that is not the program yet. Its `identity` must be recorded before `release`."""

    def __init__(self, identity: ProcessIdentity, gate: int, report: int, spec: dict[str, object]) -> None:
        self.identity, self._gate, self._report, self._spec = identity, gate, report, spec

    def release(self, seconds: float) -> None:
        """Let the child become the program. Raises: SharingError with the reason why it can't."""
        try:
            os.write(self._gate, json.dumps(self._spec).encode() + b"\n")
        except BrokenPipeError:
            raise SharingError("mps-not-ready", "the MPS daemon ended before it began", retry=Retry.LATER) from None
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        ends = time.monotonic() + seconds
        told = b""
        while poll.poll(max(0.0, ends - time.monotonic()) * 1000):
            part = os.read(self._report, _REPORT_BYTES)
            if not part:
                break
            told += part
        else:
            raise SharingError("mps-not-ready", "the MPS daemon did not start in time", retry=Retry.LATER)
        if told:
            fault = json.loads(told)
            raise SharingError(fault["code"], fault["message"], hint=fault["hint"], retry=Retry.LATER)

    def status(self) -> int | None:
        """Return the exit status; None while the process runs, or if a signal ended it."""
        try:
            found = os.waitid(os.P_PID, self.identity.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return found.si_status if found is not None and found.si_code == os.CLD_EXITED else None


@contextmanager
def spawned(
    program: ControlProgram, at: Folder, words: Sequence[str], *, uuid: str, cgroup: Path | None
) -> Iterator[SpawnedProcess]:
    """Fork a daemon's process for a device; it ends with this context unless it was released. Raises: SharingError."""
    spec: dict[str, object] = {
        "argv": [*program.argv, *words],
        "environment": launch.daemon_environment(program, at, uuid),
        "cgroup": str(cgroup) if cgroup else "",
        "view": [str(program.root), str(at.path), str(at.shm)] if program.is_private else [],
    }
    inside, gate = os.pipe()
    report, outside = os.pipe()
    ours, theirs = [gate, report], [inside, outside]
    try:
        output = _output(at)
        theirs.append(output)
        with children.held(lambda: _spawn(inside, output, outside)) as pid:
            for fd in theirs:
                os.close(fd)
            theirs.clear()
            identity = processes.identify(pid)
            if identity is None:
                raise SharingError("mps-not-ready", "the MPS daemon ended before it began", retry=Retry.LATER)
            yield SpawnedProcess(identity, gate, report, spec)
    except OSError as exc:
        text = f"the MPS daemon's process can't be made: {exc.strerror}"
        raise SharingError("mps-not-ready", text, retry=Retry.LATER) from exc
    finally:
        for fd in (*ours, *theirs):
            os.close(fd)


def words_of(at: Folder) -> str:
    """Return the last line that the program printed or wrote into its log."""
    for name in (OUTPUT, "control.log"):
        lines = client_files.tail(at.log / name, _WORDS_BYTES).decode(errors="replace").splitlines()
        if lines:
            return lines[-1][:300]
    return ""


def executable(program: ControlProgram) -> Inode | None:
    """Return the file that the kernel will run for a program: the interpreter, if the program is a script."""
    path = program.root / program.argv[0].lstrip("/")
    try:
        with path.open("rb") as file:
            head = file.read(256)
        if head.startswith(b"#!"):
            interpreter = os.fsdecode(head[2:].split(b"\n")[0].split()[0])
            path = program.root / interpreter.lstrip("/")
        found = launch.inside(program.root, path).stat()
    except (OSError, IndexError):
        return None
    return found.st_dev, found.st_ino


def _output(at: Folder) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(at.log / OUTPUT, flags, 0o600)


def _spawn(inside: int, output: int, outside: int) -> int:
    duplicates = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((inside, output, output, outside))]
    argv = [sys.executable, "-I", "-S", str(_PRELUDE)]
    return os.posix_spawn(
        argv[0],
        argv,
        {"LC_ALL": "C"},
        file_actions=duplicates,
        setsid=True,  # signals to this process's group (Ctrl-C) must not reach the daemon
        setsigdef=[signal.SIGPIPE],
    )
