"""What tests of the supervisor share: devices, folders short enough for sockets, and processes recognised by a mark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.base.errors import SharingError
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.wire import MpsSettings, SharedDevice
from dra_driver.node.mps import daemon_folder, processes
from dra_driver.node.mps.client import MpsClient, call_supervisor, socket_path
from dra_driver.node.mps.daemon_folder import DaemonFolder, key_of
from dra_driver.node.mps.launch import find_program
from dra_driver.node.mps.supervision import DaemonSupervisor
from tests.support.mps.fake_mps import FakeMps
from tests.support.waiting import until

_REMOVAL_SECONDS = 10.0
SETTINGS = MpsSettings(active_thread_percentage=50, pinned_memory_limit=4 << 30)


def device(number: int = 0) -> SharedDevice:
    """Return a GPU."""
    uuid = f"GPU-00000000-0000-0000-0000-{number:012d}"
    return SharedDevice(f"gpu-0000-{number:02x}-00-0", uuid, number, f"0000:{number:02x}:00.0")


@contextmanager
def short_folder(parent: str | None = None) -> Iterator[Path]:
    """Yield a folder whose path is short; whatever still runs in it is ended.

    A supervisor's thread may be starting a daemon just then, which mounts once more, so that one removal may not do.
    """
    folder = Path(tempfile.mkdtemp(prefix="mps", dir=parent))
    try:
        yield folder
    finally:
        ends = time.monotonic() + _REMOVAL_SECONDS
        while not _remove(folder) and time.monotonic() < ends:
            time.sleep(0.05)


def _remove(folder: Path) -> bool:
    """Remove a folder with what runs or is mounted below it; return whether it is gone."""
    end_all(folder)
    unmount(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def unmount(folder: Path) -> None:
    """Unmount what tests have left below a folder."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4])
        if folder in point.parents:
            with suppress(SharingError):
                daemon_folder.remove(point)


def processes_below(folder: Path) -> list[int]:
    """List the processes of every daemon below a folder, servers included."""
    found, mark = [], f"CUDA_MPS_PIPE_DIRECTORY={folder}/".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                words = (path / "environ").read_bytes().split(b"\0")
                if any(word.startswith(mark) for word in words) and processes.identify(int(path.name)):
                    found.append(int(path.name))
    return sorted(found)


def end_all(folder: Path) -> None:
    """Kill every daemon below a folder, by pid."""
    for pid in processes_below(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cgroup_tree() -> Path | None:
    """Return a cgroup v2 tree that can be written here; None without one."""
    words = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tree = next((Path(word[1]) for word in words if word[2] == "cgroup2"), None)
    return tree if tree is not None and os.geteuid() == 0 and os.access(tree, os.W_OK) else None


def cgroup_of(pid: int) -> str:
    """Return the cgroup (v2) of a process."""
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()


@contextmanager
def imitator(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an unrelated process that imitates a daemon by its arguments and environment."""
    command = ["/bin/sh", "-c", "read word", "nvidia-cuda-mps-control", *(arguments or ("-d",))]
    user = 65534 if os.geteuid() == 0 else None
    with subprocess.Popen(command, env=environment, user=user, cwd="/", stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


class Rig:
    """A supervisor over a fake program, in this process."""

    def __init__(self, folder: Path, *, boot_id: str = "boot-1", delays_s: tuple[float, ...] = (0.0, 0.05)) -> None:
        self.folder, self.root = folder, folder / "d"
        self.root.mkdir(exist_ok=True)
        self.fake = FakeMps(folder / "driver") if not (folder / "driver").exists() else None
        self.supervisor = DaemonSupervisor(
            self.root,
            lambda: find_program(folder / "driver", is_private=False),
            boot_id=boot_id,
            delays_s=delays_s,
        )

    def start(self, number: int = 0, settings: MpsSettings = SETTINGS, seconds: float = 60.0) -> DaemonFolder:
        return self.supervisor.start(device(number), settings, time.monotonic() + seconds)

    def stop(self, number: int = 0, seconds: float = 60.0) -> None:
        self.supervisor.stop(device(number), time.monotonic() + seconds)

    def at(self, number: int = 0) -> DaemonFolder:
        return DaemonFolder(self.root, key_of(device(number).uuid))

    def pid(self, number: int = 0) -> int:
        """Return the pid of a device's daemon, 0 without one."""
        states = (one.state for one in self.supervisor.reports() if one.state.device == device(number))
        return next((state.process.pid for state in states if state.process), 0)

    def ask(self, command: str, number: int = 0) -> str:
        """Send a command to a daemon as an operator would, with the program itself."""
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.at(number).pipe)}
        program = self.folder / "driver/usr/bin/nvidia-cuda-mps-control"
        done = subprocess.run(
            [program], check=False, input=command + "\n", text=True, capture_output=True, env=environment, timeout=120
        )
        return done.stdout.strip()


class Supervisor:
    """`dra-driver mps` as a process of its own."""

    def __init__(self, folder: Path, *flags: str, hardware: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
        self.folder, self.data = folder, folder / NVIDIA_DRIVER
        self.client = MpsClient(socket_path(self.data))
        self.log = folder / "supervisor.log"
        self._command = [*prefix, sys.executable, "-m", "dra_driver", "mps"]
        self._command += ["--kubelet-plugins-directory-path", str(folder), *hardware, *flags]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._processes[-1]

    def begin(self) -> Supervisor:
        """Start a supervisor and wait until it answers."""
        with self.log.open("ab") as log:
            self._processes.append(subprocess.Popen(self._command, stdout=log, stderr=log))
        until(self.answers, what=f"the supervisor answers: {self.log}")
        return self

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(Exception):
            self.client.running(deadline_s=1)
            return True
        return False

    def daemon(self, number: int = 0) -> int:
        """Return the pid of a device's daemon, as the supervisor reports it."""
        daemons = call_supervisor(socket_path(self.data), "list", {}, 60.0)["daemons"]
        return next(one["pid"] for one in daemons if one["device"]["gpuUUID"] == device(number).uuid)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the last supervisor; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
