"""Launch: finds NVIDIA's control program in the driver root and runs it with a fixed argument list and environment.

In: a driver root (or the simulated program), a device's folder. Out: the exit status and the output of the program that
sent a command. Never: a shell, this process's own environment, a name from a claim in an argument.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import Retry, SharingError
from dra_driver.base.telemetry.logs import start_thread
from dra_driver.node.mps import daemon_folder, processes
from dra_driver.node.mps.daemon_folder import DaemonFolder
from dra_driver.node.mps.processes import Inode, ProcessIdentity

PROGRAM = "nvidia-cuda-mps-control"
_HERE = Path("/")
_SIMULATED = Path(__file__).resolve().with_name("simulated_control.py")
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "bin", "opt/bin")
_LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "usr/lib")
_LOADERS = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1", "usr/lib64/ld-linux-x86-64.so.2")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_LINKS = 40
_OUTPUT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ControlProgram:
    """The control program. `argv` begins its command line, with paths below `root` (/ if no other root is entered).

    With `is_private` it runs in a mount namespace with the device's own /dev/shm. `path` is its PATH, and
    `library_path` its LD_LIBRARY_PATH ("" for none).
    """

    argv: tuple[str, ...]
    root: Path = _HERE
    is_private: bool = False
    path: str = _PATH
    library_path: str = ""


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How a run of the program ended: its exit status (None if it did not end in time) and its output."""

    status: int | None
    output: str


def find_program(root: Path, *, is_private: bool) -> ControlProgram:
    """Return the control program of a driver root.

    A root that is a complete system (the host's /, or a driver container's) is entered with chroot. A root that has
    only the driver's files is not entered: search paths lead to them.

    Raises: SharingError("sharing.mps-no-program", LATER): the driver may be installed later.
    """
    for folder in _PROGRAM_FOLDERS:
        path = resolve_in_root(root, root / folder / PROGRAM)
        if not (path.is_file() and os.access(path, os.X_OK)):
            continue
        if root == _HERE:
            return ControlProgram((str(path),), is_private=is_private)
        if is_private and any(os.path.lexists(root / loader) for loader in _LOADERS):
            return ControlProgram((f"/{path.relative_to(root)}",), root, is_private=True)
        libraries = [str(root / name) for name in _LIBRARY_FOLDERS if (root / name).is_dir()]
        return ControlProgram(
            (str(path),), is_private=is_private, path=f"{path.parent}:{_PATH}", library_path=":".join(libraries)
        )
    raise SharingError(
        "mps-no-program",
        f"the driver root {root} has no {PROGRAM}",
        hint="install the driver's compute utilities on the node, or correct --nvidia-driver-root-mount",
        retry=Retry.LATER,
    )


def simulated_program() -> ControlProgram:
    """Return the simulated control program, which shares no GPU and needs no privilege; its file is never imported."""
    return ControlProgram((sys.executable, "-I", "-S", str(_SIMULATED)))


def daemon_environment(program: ControlProgram, folder: DaemonFolder, uuid: str) -> dict[str, str]:
    """Return the complete environment for a device's daemon."""
    log = {"CUDA_MPS_LOG_DIRECTORY": str(folder.log), "CUDA_VISIBLE_DEVICES": uuid}
    return {**_environment(program, folder), **log}


def ask(program: ControlProgram, folder: DaemonFolder, command: str, *, seconds: float) -> ProgramExit:
    """Run the program once to send one command to a device's daemon. Raises: SharingError."""
    return _run(_Call(program, folder, program.argv, _environment(program, folder), command + "\n", seconds))


@dataclass(frozen=True, slots=True)
class _Call:
    """One run of the program."""

    program: ControlProgram
    folder: DaemonFolder
    argv: tuple[str, ...]
    environment: dict[str, str]
    text: str
    seconds: float

    def run(self) -> ProgramExit:
        """Run the program in the mount namespace of the calling thread.

        Its output is limited in time and size, because other processes may influence it.
        """
        ends = time.monotonic() + self.seconds
        try:
            with processes.child(self._start) as process:
                assert process.stdin is not None  # noqa: S101 - a pipe
                assert process.stdout is not None  # noqa: S101
                with suppress(BrokenPipeError):
                    process.stdin.write(self.text.encode())
                    process.stdin.close()
                output = _read_output(process.stdout.fileno(), ends)
                process.stdout.close()
                try:
                    status = None if output is None else process.wait(max(0.0, ends - time.monotonic()))
                except subprocess.TimeoutExpired:
                    status = None
                return ProgramExit(status, (output or b"").decode(errors="replace").strip())
        except OSError as exc:
            text = f"{self.argv[0]} can't be started: {exc.strerror}"
            raise SharingError("mps-no-program", text, retry=Retry.LATER) from exc

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd="/",
            bufsize=0,
            preexec_fn=processes.kill_with_parent(),  # noqa: PLW1509 - that takes no lock and imports nothing
            start_new_session=True,  # signals to this process's group (Ctrl-C) must not reach the daemon
        )


def _read_output(fd: int, ends: float) -> bytes | None:
    """Read the output to its end; return None if it does not end in time, or is too long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    output = b""
    while len(output) <= _OUTPUT_BYTES and poll.poll(max(0.0, ends - time.monotonic()) * 1000):
        part = os.read(fd, 4096)
        if not part:
            return output
        output += part
    return None


def _run(call: _Call) -> ProgramExit:
    if not call.program.is_private:
        return call.run()
    results: list[ProgramExit | BaseException] = []

    def run_in_private_view() -> None:
        try:
            daemon_folder.enter_private(call.program.root, call.folder.path, call.folder.shm)
            results.append(call.run())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            results.append(error)

    # In a separate thread, because its mount namespace ends with it.
    thread = threading.Thread(target=run_in_private_view, name=f"launch-{call.folder.key}", daemon=True)
    start_thread(thread)
    thread.join()
    result = results[0]
    if isinstance(result, BaseException):
        raise result
    return result


def _environment(program: ControlProgram, folder: DaemonFolder) -> dict[str, str]:
    libraries = {"LD_LIBRARY_PATH": program.library_path} if program.library_path else {}
    return {"PATH": program.path, "LC_ALL": "C", "CUDA_MPS_PIPE_DIRECTORY": str(folder.pipe), **libraries}


def resolve_in_root(root: Path, path: Path) -> Path:
    """Return the file to which `path` leads, following symbolic links as if `root` were /."""
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            break
        target = path.readlink()
        path = root / str(target).lstrip("/") if target.is_absolute() else path.parent / target
    return path


# Start a control daemon so that its identity is known and recorded before its program runs.

OUTPUT = "output.log"  # what the program prints
_LOG = "control.log"  # what the program itself writes; it appends to what earlier daemons wrote
_CONTROL_CHILD = Path(__file__).with_name("control_child.py")
_LOG_TAIL_BYTES = 2048
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
            lines = processes.tail(path, _LOG_TAIL_BYTES, begins).decode(errors="replace").splitlines()
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
        "environment": daemon_environment(program, folder, uuid),
        "cgroup": str(cgroup) if cgroup else "",
        "view": [str(program.root), str(folder.path), str(folder.shm)] if program.is_private else [],
    }
    gate_read, gate_write = os.pipe()
    report, report_write = os.pipe()
    ours, theirs = [gate_write, report], [gate_read, report_write]
    try:
        output = _output(folder)
        theirs.append(output)
        logs = {folder.log / name: processes.size(folder.log / name) for name in (OUTPUT, _LOG)}
        with processes.held(lambda: _spawn(gate_read, output, report_write)) as pid:
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
        found = resolve_in_root(program.root, path).stat()
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


# Ask the kernel which process listens on a daemon's control socket.

_SO_PEERPIDFD = 77
_OPEN_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def fault(path: Path, process: ProcessIdentity) -> str:
    """Return "" if `process` listens at `path`, else the reason why nothing must be sent there."""
    try:
        pid, uid = _listener(path)
    except OSError as exc:
        return f"no process answers at {path}: {exc.strerror}"
    if (pid, uid) == (process.pid, os.geteuid()) and process.is_alive():
        return ""
    return f"process {pid} of user {uid} listens at {path}, not the MPS control daemon {process.pid}"


def listener(path: Path) -> ProcessIdentity | None:
    """Return the process of our user that listens at `path`, or None if there is none."""
    try:
        pid, uid = _listener(path)
    except OSError:
        return None
    return processes.identify(pid) if uid == os.geteuid() else None


def _listener(path: Path) -> tuple[int, int]:
    """Return the listener's pid and user; the pid is 0 if that process has ended. Raises: OSError."""
    fd = os.open(path, _OPEN_PATH_ONLY)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
            asking.connect(f"/proc/self/fd/{fd}")
            pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return (pid if _lives(asking) else 0), uid
    finally:
        os.close(fd)


def _lives(asking: socket.socket) -> bool:
    """Return whether the listener still runs, so that its pid can't belong to another process by now.

    Before Linux 6.5 this can't be determined, and true is returned.
    """
    try:
        (fd,) = struct.unpack("i", asking.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))
    except OSError as exc:
        return exc.errno not in {errno.ESRCH, errno.EINVAL}
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:  # noqa: PTH123
            return b"Pid:\t-1\n" not in file.read()
    except OSError:
        return True
    finally:
        with suppress(OSError):
            os.close(fd)
