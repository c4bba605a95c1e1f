"""Hostile clients and other processes: they can't make the supervisor act on a foreign process or file, or block."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError
from dra_driver.node.mps import processes
from dra_driver.node.mps import processes as client_files
from dra_driver.node.mps.daemon_folder import key_of
from tests.support.mps.fake_mps import FakeClient
from tests.support.mps.parts import (
    SETTINGS,
    Rig,
    Supervisor,
    cgroup_of,
    cgroup_tree,
    device,
    end_all,
    imitator,
    processes_below,
)
from tests.support.waiting import until

PID_FILE = "nvidia-cuda-mps-control.pid"


@pytest.fixture
def cgroup(folder: Path) -> Iterator[Path]:
    tree = cgroup_tree()
    if tree is None:
        pytest.skip("no cgroup v2 tree can be written here, or we are not root")
    path = tree / folder.name
    yield path
    end_all(folder)
    for one in [*path.glob("*/"), path]:
        with suppress(OSError):
            one.rmdir()


@pytest.fixture
def supervisor(folder: Path, cgroup: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(folder, "--mps-cgroup", str(cgroup), hardware=["--hardware", "simulated:any"])
    supervisor.begin()
    yield supervisor
    supervisor.close()


def folder_of(supervisor: Supervisor, number: int = 0) -> Path:
    return supervisor.data / "mps/d" / key_of(device(number).uuid)


def test_an_unrelated_process_that_imitates_a_daemon_is_neither_moved_nor_ended(supervisor: Supervisor):
    with imitator(DRA_DRIVER_MPS=str(folder_of(supervisor))) as process:
        before = cgroup_of(process.pid)
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
        assert cgroup_of(process.pid) == before
        supervisor.client.stop(device(), deadline_s=60)
        assert process.poll() is None


def test_an_imitator_that_the_pid_file_names_is_neither_moved_nor_ended(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    at = folder_of(supervisor)
    with imitator(DRA_DRIVER_MPS=str(at)) as process:
        before = cgroup_of(process.pid)
        daemon = supervisor.daemon()
        (at / "pipe" / PID_FILE).write_text(f"{process.pid}\n")
        os.kill(daemon, 9)
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
        assert cgroup_of(process.pid) == before
        supervisor.client.stop(device(), deadline_s=60)
        assert process.poll() is None


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "huge"])
def test_nothing_in_the_place_of_the_pid_file_blocks_the_supervisor(supervisor: Supervisor, kind: str):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    at = folder_of(supervisor)
    path = at / "pipe" / PID_FILE
    path.unlink()
    make(path, kind)
    with imitator(DRA_DRIVER_MPS=str(at)):
        os.kill(supervisor.daemon(), signal.SIGKILL)
        supervisor.client.stop(device(), deadline_s=60)
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
        make(path.with_name("more"), kind)
        assert supervisor.end(signal.SIGKILL) == -signal.SIGKILL
        supervisor.begin()
        supervisor.client.stop(device(), deadline_s=60)
    assert supervisor.client.running(deadline_s=60) == ()


def make(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        (path / "inner").mkdir(parents=True)
    else:
        with suppress(OSError), path.open("wb") as file:
            file.write(b"1" * (2 << 20))


def test_another_listener_on_the_control_socket_is_sent_nothing(supervisor: Supervisor):
    at = folder_of(supervisor)
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    (at / "pipe/control").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(at / "pipe/control"))
        listening.listen()
        with pytest.raises(DriverError, match=f"process {os.getpid()} of user 0 listens") as refused:
            supervisor.client.start(device(), SETTINGS, deadline_s=2)
        assert refused.value.code == "sharing.mps-not-ready"
        supervisor.client.stop(device(), deadline_s=60)
        listening.setblocking(False)
        heard = b""
        with suppress(OSError):
            while True:
                heard += listening.accept()[0].recv(100)
        assert heard == b""
    assert processes_below(supervisor.folder) == []


def test_a_link_to_the_socket_of_another_device_does_not_affect_that_device(supervisor: Supervisor):
    for number in (1, 2):
        supervisor.client.start(device(number), SETTINGS, deadline_s=60)
    client = FakeClient(folder_of(supervisor, 2) / "pipe")
    control = folder_of(supervisor, 1) / "pipe/control"
    control.unlink()
    control.symlink_to(folder_of(supervisor, 2) / "pipe/control")
    with pytest.raises(DriverError):
        supervisor.client.start(device(1), SETTINGS, deadline_s=1)
    supervisor.client.stop(device(1), deadline_s=60)
    assert client.works()
    assert [one.uuid for one in supervisor.client.running(deadline_s=60)] == [device(2).uuid]


def test_a_client_can_fill_neither_disk_nor_inodes_of_the_node(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    at = folder_of(supervisor)
    for name, most in (("pipe", 1 << 20), ("shm", 1 << 30), ("log", 32 << 20)):
        found = os.statvfs(at / name)
        assert (at / name).stat().st_dev != at.stat().st_dev
        assert found.f_blocks * found.f_frsize <= most
        assert found.f_files <= 16384
    options = {line.split()[1]: line.split()[3] for line in Path("/proc/self/mounts").read_text().splitlines()}
    for name in ("pipe", "shm", "log"):
        assert {"nosuid", "nodev", "noexec"} <= set(options[str(at / name)].split(","))
    fill(at / "pipe")
    fill(at / "shm", most=20000)
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    supervisor.client.start(device(1), SETTINGS, deadline_s=60)
    os.kill(supervisor.daemon(), signal.SIGKILL)
    until(lambda: all(one.is_ready for one in supervisor.client.running(deadline_s=60)))
    fill(at / "pipe")
    supervisor.client.stop(device(), deadline_s=60)
    assert not at.exists()


def fill(folder: Path, *, most: int = 2000) -> None:
    """Write until there is no room, and make files until there are no inodes."""
    with suppress(OSError), (folder / "full").open("wb") as file:
        for _ in range(4):
            file.write(bytes(1 << 19))
    with suppress(OSError):
        for number in range(most):
            (folder / f"file-{number}").touch()


def test_folders_of_any_depth_are_removed(folder: Path):
    top = folder / "pipe"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("one", dir_fd=fd)
        below = os.open("one", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(fd)
        fd = below
    os.close(fd)
    client_files.sweep(top)
    assert list(top.iterdir()) == []
    (top / "one/two/three").mkdir(parents=True)
    client_files.empty(top)
    assert list(top.iterdir()) == []


def test_what_a_pod_left_in_shared_memory_is_removed_before_the_next_pod_starts(supervisor: Supervisor):
    channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
    shm = Path(channel.shm_dir)
    (shm / "deep/er").mkdir(parents=True)
    (shm / "link").symlink_to("secret")
    for name in ("secret", "deep/er/secret", "held", "mapped"):
        (shm / name).write_text("of the first pod")
    with (shm / "held").open() as _, (shm / "mapped").open("r+") as file:
        memory = mmap.mmap(file.fileno(), 0)
        file.close()
        supervisor.client.start(device(), SETTINGS, deadline_s=60)  # the next tenant's Prepare
        assert sorted(path.name for path in shm.iterdir()) == ["held", "mapped"]
        memory.close()
    supervisor.client.tidy(device(), deadline_s=60)  # what Unprepare of one of several claims asks for
    assert list(shm.iterdir()) == []
    (shm / "secret").write_text("of the last pod")
    supervisor.client.stop(device(), deadline_s=60)
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    assert list(shm.iterdir()) == []


def test_only_the_ends_of_our_own_regular_files_are_read(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("0123456789")
    assert client_files.tail(path, 4) == b"6789"
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "none", "."):
        assert client_files.tail(tmp_path / name, 4) == b""
    assert client_files.tail(Path("/dev/zero"), 4) == b""
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        assert client_files.tail(path, 4) == b""


def test_a_daemon_of_0_1_0_is_kept_and_an_unrelated_process_in_its_record_is_left_alone(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    client = FakeClient(folder_of(supervisor) / "pipe")
    pid, path = supervisor.daemon(), folder_of(supervisor) / "state.json"
    supervisor.end(signal.SIGKILL)
    forget_origin(path)
    supervisor.begin()
    assert supervisor.daemon() == pid
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    assert client.works()
    supervisor.end(signal.SIGKILL)
    with imitator() as process:
        begun = processes.identify(process.pid)
        assert begun
        before = cgroup_of(process.pid)
        forget_origin(path, pid=begun.pid, startTicks=begun.start_ticks)
        supervisor.begin()
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
        supervisor.client.stop(device(), deadline_s=60)
        assert (process.poll(), cgroup_of(process.pid)) == (None, before)


def forget_origin(path: Path, **more: int) -> None:
    """Turn a record into one as 0.1.0 wrote it."""
    record = json.loads(path.read_text())
    for name in ("pidNamespace", "executable", "former", "isMounted"):
        del record[name]
    path.write_text(json.dumps({**record, **more}))


BUSY = """
import os, sys, time
os.chdir(sys.argv[1])
ends = time.monotonic() + 60
open("begun", "w").close()
names = [f"{os.getpid()}-{number}" for number in range(20)]
while time.monotonic() < ends:
    for name in names:
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        except OSError:
            pass
"""


@contextmanager
def busy_writers(folder: Path, count: int = 2) -> Iterator[None]:
    """Run clients that make files in a folder again and again, faster than anyone can remove them."""
    (folder / "begun").unlink(missing_ok=True)
    running = [subprocess.Popen([sys.executable, "-S", "-c", BUSY, str(folder)]) for _ in range(count)]
    try:
        until((folder / "begun").exists)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_emptying_a_folder_that_clients_keep_filling_ends_in_time(folder: Path):
    (folder / "pipe").mkdir()
    with busy_writers(folder / "pipe", 4):
        client_files.empty(folder / "pipe", 0.3)
        client_files.sweep(folder / "pipe", 0.3)
    assert client_files.empty(folder / "pipe", 60.0)


def test_clients_that_never_stop_writing_delay_neither_a_new_daemon_nor_its_end(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    at = folder_of(supervisor)
    with busy_writers(at / "pipe", 1), busy_writers(at / "shm", 1):
        os.kill(supervisor.daemon(), signal.SIGKILL)
        until(lambda: at_rest(supervisor))
        supervisor.client.tidy(device(), deadline_s=60)
        supervisor.client.stop(device(), deadline_s=60)
        assert not at.exists()


def at_rest(supervisor: Supervisor) -> bool:
    """Return whether no command runs for the device, so that the next one is accepted."""
    with suppress(DriverError):
        supervisor.client.start(device(), SETTINGS, deadline_s=5)
        return True
    return False


def test_a_folder_is_emptied_although_a_client_took_the_names_for_removed_folders(folder: Path):
    (folder / "a/b/c").mkdir(parents=True)
    for number in range(9):
        (folder / f".removed-{os.getpid()}-{number}/taken").mkdir(parents=True)
    assert client_files.empty(folder, 60.0)
    assert list(folder.iterdir()) == []


def test_what_a_pod_left_is_removed_even_if_the_daemon_ended_before_the_next_pod_started(folder: Path):
    rig = Rig(folder, delays_s=(600.0,))
    rig.supervisor.begin()
    try:
        at = rig.start()
        (at.shm / "secret").write_text("of the pod before")
        pid = rig.pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.identify(pid) is None)
        rig.start()
        assert not (at.shm / "secret").exists()
    finally:
        rig.supervisor.close()


@pytest.mark.parametrize("listed", ["9" * 5000, " ".join(map(str, range(3000)))])
def test_an_impossible_list_of_servers_is_refused(folder: Path, listed: str):
    rig = Rig(folder)
    rig.supervisor.begin()
    try:
        rig.start()
        assert rig.fake
        rig.fake.break_(f"get_server_list answer {listed}")
        with pytest.raises(DriverError, match="get_server_list") as refused:
            rig.start(settings=replace(SETTINGS, active_thread_percentage=60))
        assert refused.value.code == "sharing.mps-refused"
    finally:
        rig.supervisor.close()
