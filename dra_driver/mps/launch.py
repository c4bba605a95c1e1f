"""Launch: finds NVIDIA's control program in the driver root and runs it with a fixed argument list and environment.

In: a driver root (or the simulated program), a device's folder. Out: the exit status and the output of the program that
sent a command. Never: a shell, this process's own environment, a name from a claim in an argument.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps import children, mounts
from dra_driver.mps.daemon_folder import DaemonFolder
from dra_driver.telemetry.thread_start import start_thread

PROGRAM = "nvidia-cuda-mps-control"
_HERE = Path("/")
_SIMULATED = Path(__file__).resolve().with_name("simulated") / "control.py"
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
            with children.child(self._start) as process:
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
            preexec_fn=children.kill_with_parent(),  # noqa: PLW1509 - that takes no lock and imports nothing
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
            mounts.enter_private(call.program.root, call.folder.path, call.folder.shm)
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
