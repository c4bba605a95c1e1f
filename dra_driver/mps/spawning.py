"""Start a control daemon so that its identity is known and recorded before its program runs.

In: the program, a device's folder and cgroup. Out: a child that waits until its identity is on disk and then executes
the program in the foreground (`-f`): the daemon is the very process that was forked here, and its pid can't be reused
while we hold it. Never: a process that was found by searching.
Source: NVIDIA Multi-Process Service, nvidia-cuda-mps-control -f and its environment variables.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps import children, client_files, launch, processes
from dra_driver.mps.daemon_folder import DaemonFolder
from dra_driver.mps.launch import ControlProgram
from dra_driver.mps.processes import Inode, ProcessIdentity

OUTPUT = "output.log"  # what the program prints
_LOG = "control.log"  # what the program itself writes; it appends to what earlier daemons wrote
_CONTROL_CHILD = Path(__file__).with_name("control_child.py")
_OUTPUT_BYTES = 2048
_REPORT_BYTES = 4096


class SpawnedProcess:
    """A child that has not executed the program yet. Its `identity` must be recorded before `release`.

    `logs` are the files with what it says, each with the size that it had before.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        gate_write: int,
        report: int,
        spec: dict[str, object],
        logs: Mapping[Path, int],
    ) -> None:
        self.identity, self._gate, self._report, self._spec, self._logs = identity, gate_write, report, spec, logs

    def release(self, seconds: float) -> None:
        """Let the child execute the program. Raises: SharingError, with the reason why it can't."""
        try:
            os.write(self._gate, json.dumps(self._spec).encode() + b"\n")
        except BrokenPipeError:
            raise SharingError("mps-not-ready", "the MPS daemon's process ended at once", retry=Retry.LATER) from None
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        ends = time.monotonic() + seconds
        report = b""
        while poll.poll(max(0.0, ends - time.monotonic()) * 1000):
            part = os.read(self._report, _REPORT_BYTES)
            if not part:
                break
            report += part
        else:
            raise SharingError("mps-not-ready", "the MPS daemon did not start in time", retry=Retry.LATER)
        if report:
            fault = json.loads(report)
            raise SharingError(fault["code"], fault["message"], hint=fault["hint"], retry=Retry.LATER)

    def status(self) -> int | None:
        """Return the exit status; None while the process runs, or if a signal ended it."""
        try:
            found = os.waitid(os.P_PID, self.identity.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return found.si_status if found is not None and found.si_code == os.CLD_EXITED else None

    def last_output(self) -> str:
        """Return the last line that the program printed or wrote into its log; "" if there is none."""
        for path, begins in self._logs.items():
            lines = client_files.tail(path, _OUTPUT_BYTES, begins).decode(errors="replace").splitlines()
            if lines:
                return lines[-1][:300]
        return ""


@contextmanager
def spawned(
    program: ControlProgram, folder: DaemonFolder, words: Sequence[str], *, uuid: str, cgroup: Path | None
) -> Iterator[SpawnedProcess]:
    """Fork the process of a device's daemon; unless released, it ends with this context. Raises: SharingError."""
    spec: dict[str, object] = {
        "argv": [*program.argv, *words],
        "environment": launch.daemon_environment(program, folder, uuid),
        "cgroup": str(cgroup) if cgroup else "",
        "view": [str(program.root), str(folder.path), str(folder.shm)] if program.is_private else [],
    }
    gate_read, gate_write = os.pipe()
    report, report_write = os.pipe()
    ours, theirs = [gate_write, report], [gate_read, report_write]
    try:
        output = _output(folder)
        theirs.append(output)
        logs = {folder.log / name: client_files.size(folder.log / name) for name in (OUTPUT, _LOG)}
        with children.held(lambda: _spawn(gate_read, output, report_write)) as pid:
            for fd in theirs:
                os.close(fd)
            theirs.clear()
            identity = processes.identify(pid)
            if identity is None:
                raise SharingError("mps-not-ready", "the MPS daemon's process ended at once", retry=Retry.LATER)
            yield SpawnedProcess(identity, gate_write, report, spec, logs)
    except OSError as exc:
        text = f"the MPS daemon's process can't be made: {exc.strerror}"
        raise SharingError("mps-not-ready", text, retry=Retry.LATER) from exc
    finally:
        for fd in (*ours, *theirs):
            os.close(fd)


def executable(program: ControlProgram) -> Inode | None:
    """Return the file that the kernel will run for a program: the interpreter, if the program is a script."""
    path = program.root / program.argv[0].lstrip("/")
    try:
        with path.open("rb") as file:
            head = file.read(256)
        if head.startswith(b"#!"):
            interpreter = os.fsdecode(head[2:].split(b"\n")[0].split()[0])
            path = program.root / interpreter.lstrip("/")
        found = launch.resolve_in_root(program.root, path).stat()
    except (OSError, IndexError):
        return None
    return found.st_dev, found.st_ino


def _output(folder: DaemonFolder) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(folder.log / OUTPUT, flags, 0o600)


def _spawn(gate_read: int, output: int, report_write: int) -> int:
    duplicates = [
        (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((gate_read, output, output, report_write))
    ]
    argv = [sys.executable, "-I", "-S", str(_CONTROL_CHILD)]
    return os.posix_spawn(
        argv[0],
        argv,
        {"LC_ALL": "C"},
        file_actions=duplicates,
        setsid=True,  # signals to this process's group (Ctrl-C) must not reach the daemon
        setsigdef=[signal.SIGPIPE],
    )
