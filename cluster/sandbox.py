"""The isolation of one cluster: a network namespace, a cgroup tree, a short folder, the sysctls that a kubelet changes.

In: a name. Out: commands that run inside, and one `destroy` that ends every process started inside and removes the
isolation. Processes are found by the cgroup in which they were started, so it does not matter who started them or
whether that process still runs. No process, mount, namespace or setting outside the cluster is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CGROUPS = Path("/sys/fs/cgroup")
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
# Set by the kubelet and the network plugins; the network's own sysctls belong to the namespace and end with it.
SYSCTLS = (
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


class NotInTime(Exception):
    """A condition was not met in time."""


def until(what: str, probe: Callable[[], T], seconds: float, every: float = 0.1) -> T:
    """Poll `probe` until it returns something true, and return that.

    The first pause is `every` seconds and later ones are longer, up to five times, because a long wait must not keep
    other work from running. An AssertionError of the probe counts as "not yet".

    Raises: NotInTime with what was waited for and the last answer.
    """
    deadline, pause = time.monotonic() + seconds, every
    while True:
        try:
            answer: object = probe()
            if answer:
                return answer  # type: ignore[return-value]
        except AssertionError as refusal:
            answer = refusal
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {seconds:.0f} s; last seen: {str(answer)[:2000]}")
        time.sleep(pause)
        pause = min(pause * 1.25, every * 5)


def hierarchies() -> list[Path]:
    """Return the mount points of the cgroup controllers: one for each on v1, a single one on v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted(path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The isolation of the cluster whose files are in `root`.

    The name of that folder is also its name in the kernel.
    """

    root: Path

    @property
    def name(self) -> str:
        """Return the name of the network namespace and of the cgroup."""
        return self.root.name

    @property
    def net(self) -> str:
        """Return the path of the network namespace, which is that of the process that keeps it open."""
        return f"/proc/{(self.root / 'holder').read_text().strip()}/ns/net"

    @property
    def tracking(self) -> Path:
        """Return the cgroup that holds every process of the cluster."""
        one = CGROUPS / "pids"
        return (one if one.is_dir() else CGROUPS) / self.name

    def create(self) -> None:
        """Create the folder, the record of sysctls, the cgroups, and a network namespace with its loopback."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "sysctls").write_text("".join(f"{key}={_sysctl(key)}\n" for key in SYSCTLS if _sysctl(key)))
        for hierarchy in hierarchies():
            self.cgroup(hierarchy / self.name)
        self.group("control")
        # `ip netns add` would leave a mount on /run/netns for good.
        join = f"echo $$ >{self.tracking}/control/daemons/cgroup.procs"
        hold = f"sh -c '{join} && exec setsid unshare --net sleep infinity' </dev/null >/dev/null 2>&1 & echo $!"
        pid = subprocess.run(["sh", "-c", hold], check=True, capture_output=True, text=True).stdout.strip()
        (self.root / "holder").write_text(pid)
        ours = Path("/proc/self/ns/net").readlink()
        until("a network namespace", lambda: Path(self.net).readlink() != ours, 10)
        self.run("ip", "link", "set", "lo", "up")

    def cgroup(self, path: Path) -> None:
        """Create a cgroup below ours; a new v1 cpuset is empty and accepts no process until it is filled.

        On v2 the parent first delegates its controllers, because a kubelet expects them in its root.
        """
        if (path.parent / "cgroup.subtree_control").exists():
            for controller in (path.parent / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (path.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        path.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (path / file).exists() and not (path / file).read_text().strip():
                (path / file).write_text((path.parent / file).read_text())

    def group(self, name: str) -> None:
        """Create a cgroup in which to track processes: the control plane's, or one node's."""
        self.cgroup(self.tracking / name)
        self.cgroup(self.tracking / name / "daemons")

    def enter(self, *argv: str, mount: Path | None = None, group: str = "control") -> list[str]:
        """Return `argv` wrapped so that it runs in the namespaces (network, and a node's mounts) and in a cgroup."""
        # The pid stays the same through all three commands, so it is the daemon's own.
        join = f'echo $$ >{self.tracking}/{group}/daemons/cgroup.procs && exec "$@"'
        mounts = [f"--mount={mount}"] if mount else []
        return ["sh", "-c", join, "sh", "nsenter", f"--net={self.net}", *mounts, "--", *argv]

    def run(self, *argv: str, mount: Path | None = None, group: str = "control", timeout: float = 60) -> str:
        """Run a command inside to its end, and return its output."""
        command = self.enter(*argv, mount=mount, group=group)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(argv)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def fetch(self, port: int, path: str) -> str:
        """GET a page that is served on loopback inside; return its text, or what went wrong."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.sock = self.connected(port)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return f"error: {error}"
        finally:
            connection.close()
        return text if answer.status < 300 else f"error: {answer.status}: {text[-500:]}"

    def connected(self, port: int) -> socket.socket:
        """Return a connection to a port inside; a socket stays in the namespace of the thread that made it."""

        def connect() -> socket.socket:
            namespace = os.open(self.net, os.O_RDONLY)
            try:
                if _LIBC.setns(namespace, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(namespace)
            return socket.create_connection(("127.0.0.1", port), timeout=5)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(connect).result()

    def pids(self, below: str = "") -> list[int]:
        """Return the processes of the cluster, including those of its containers."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.tracking / below):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split()]
        return found

    def kill(self, below: str = "", seconds: float = 20) -> None:
        """End every process in the cgroup, by pid, until none is left."""

        def gone() -> bool:
            left = self.pids(below)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(f"processes of {self.name} gone", gone, seconds)

    def destroy(self) -> None:
        """Take everything down; safe to repeat, also on the remains of a cluster whose owner was killed."""
        self.kill()
        for hierarchy in hierarchies():
            remove_cgroups(hierarchy / self.name)
        notes = self.root / "sysctls"
        for line in notes.read_text().splitlines() if notes.exists() else []:
            key, _, value = line.partition("=")
            if _sysctl(key) != value:
                Path("/proc/sys", key).write_text(value)
        shutil.rmtree(self.root)


def remove_cgroups(top: Path) -> None:
    """Remove a cgroup and those below it; a dying process may keep one for a moment."""

    def gone() -> bool:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        return not top.exists()

    until(f"{top} removed", gone, 20)


def _sysctl(key: str) -> str:
    try:
        return Path("/proc/sys", key).read_text().strip()
    except OSError:
        return ""
