"""`dra-driver mps` as a process: restarted, killed, upgraded and in a PID namespace of its own, under live clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError, ExitCode, Retry
from dra_driver.node.mps import client as supervisor_call
from dra_driver.node.mps.client import MpsClient, socket_path
from dra_driver.node.mps.daemon_folder import key_of
from tests.support.mps.fake_mps import FakeClient, FakeMps
from tests.support.mps.parts import SETTINGS, Supervisor, cgroup_of, device, end_all, processes_below
from tests.support.small_disk import fill, mount
from tests.support.waiting import unhindered, until

HEAVY = ("grpc", "click", "pydantic", "kubernetes", "yaml", "pynvml", "rich", "hashlib")


def test_commands_go_over_a_socket_that_is_open_to_its_user_alone(supervisor: Supervisor):
    channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
    path = socket_path(supervisor.data)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (running,) = supervisor.client.running(deadline_s=60)
    assert (running.device, running.uuid, running.settings) == (device().name, device().uuid, SETTINGS)
    assert running.is_ready
    assert stat.S_IMODE(Path(channel.shm_dir).stat().st_mode) == 0o1777
    assert FakeClient(channel.pipe_dir).percentage == 50.0
    supervisor.client.stop(device(), deadline_s=60)
    assert supervisor.client.running(deadline_s=60) == ()
    assert processes_below(supervisor.folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_clients_outlive_a_supervisor_that_ends(supervisor: Supervisor, number: signal.Signals):
    channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
    client = FakeClient(channel.pipe_dir)
    before = processes_below(supervisor.folder)
    status = supervisor.end(number)
    assert status == (0 if number == signal.SIGTERM else -number)
    assert client.works()
    assert FakeClient(channel.pipe_dir).server_pid == client.server_pid
    supervisor.begin()
    assert supervisor.client.start(device(), SETTINGS, deadline_s=60) == channel
    assert client.works()
    assert processes_below(supervisor.folder) == before
    supervisor.client.stop(device(), deadline_s=60)
    assert not client.works()
    assert processes_below(supervisor.folder) == []


def test_a_command_ends_with_the_supervisor_that_gave_it(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    (daemon,) = processes_below(supervisor.folder)
    os.kill(daemon, signal.SIGSTOP)  # it answers no command, but would carry out an abandoned one later

    def change() -> None:
        with suppress(DriverError):
            supervisor.client.start(device(), replace(SETTINGS, active_thread_percentage=70), deadline_s=60)

    changing = threading.Thread(target=change)
    changing.start()
    until(lambda: len(processes_below(supervisor.folder)) == 2, what="a command is given")
    supervisor.end(signal.SIGKILL)
    until(lambda: processes_below(supervisor.folder) == [daemon], what="the command ended")
    os.kill(daemon, signal.SIGCONT)
    supervisor.begin()
    changing.join()


def test_a_supervisor_without_daemons_removes_its_folder_when_it_ends(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    assert supervisor.end(signal.SIGTERM) == 0
    root = socket_path(supervisor.data).parent
    assert root.exists()
    supervisor.begin()
    supervisor.client.stop(device(), deadline_s=60)
    assert supervisor.end(signal.SIGTERM) == 0
    assert not root.exists()


def test_a_call_during_a_restart_waits_for_the_next_supervisor(supervisor: Supervisor, monkeypatch):
    monkeypatch.setattr(supervisor_call, "_RESTART_S", 60.0)  # a busy machine starts a process slowly
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    supervisor.end()
    answers: list[bool] = []
    thread = threading.Thread(
        target=lambda: answers.extend(one.is_ready for one in supervisor.client.running(deadline_s=60))
    )
    thread.start()
    supervisor.begin()
    thread.join()
    assert answers == [True]


def test_after_an_upgrade_the_new_supervisor_repairs_what_the_old_one_started(supervisor: Supervisor):
    channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
    supervisor.end()
    supervisor.begin()
    (pid,) = processes_below(supervisor.folder)
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes_below(supervisor.folder) not in ([], [pid]))
    until(lambda: supervisor.client.running(deadline_s=60)[0].is_ready)
    assert FakeClient(channel.pipe_dir).percentage == 50.0


def test_a_daemon_has_a_session_of_its_own(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)
    (pid,) = processes_below(supervisor.folder)
    assert os.getsid(pid) not in {os.getsid(0), os.getsid(supervisor.process.pid)}


def test_show_lists_the_daemons_with_their_servers(supervisor: Supervisor):
    channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
    client = FakeClient(channel.pipe_dir)
    command = [sys.executable, "-m", "dra_driver", "mps", "--show"]
    command += ["--kubelet-plugins-directory-path", str(supervisor.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (shown,) = json.loads(done.stdout)["daemons"]
    assert shown["device"]["name"] == device().name
    assert shown["isReady"]
    assert shown["servers"] == [{"pid": client.server_pid, "status": "ACTIVE"}]
    client.end()
    supervisor.client.stop(device(), deadline_s=60)
    supervisor.end()
    asked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (asked.returncode, "sharing.mps-unavailable" in asked.stderr) == (5, True)


def test_only_one_supervisor_works_in_a_folder(supervisor: Supervisor):
    command = [sys.executable, "-m", "dra_driver", "mps", "--hardware", "simulated:any"]
    command += ["--kubelet-plugins-directory-path", str(supervisor.folder)]
    second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert second.returncode == 5
    assert "node.mps-running" in second.stderr
    assert supervisor.client.running(deadline_s=60) == ()


@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b"hello\n", b"{}\n", b"\xff" * 100 + b"\n", b'{"version":1,"command":"list"', b"x" * 70000]
)
def test_garbage_gets_an_error_and_the_supervisor_goes_on(supervisor: Supervisor, garbage: bytes):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(socket_path(supervisor.data)))
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(connection.makefile("rb").read())
        except (BrokenPipeError, ConnectionResetError):
            answer = {"error": {"code": "mps-bad-request"}}
    assert answer["error"]["code"] == "mps-bad-request"
    assert supervisor.client.running(deadline_s=60) == ()


def test_silent_connections_do_not_block_other_callers(supervisor: Supervisor):
    silent = []
    for _ in range(8):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(socket_path(supervisor.data)))
        silent.append(connection)
    supervisor.client.running(deadline_s=60)
    for connection in silent:
        connection.close()


def test_without_a_supervisor_the_error_says_what_to_run(folder: Path):
    client = MpsClient(socket_path(folder))
    for call in (
        lambda: client.start(device(), SETTINGS, deadline_s=1),
        lambda: client.stop(device(), deadline_s=1),
        lambda: client.running(deadline_s=1),
    ):
        with pytest.raises(DriverError) as refused:
            call()
        assert refused.value.code == "sharing.mps-unavailable"
        assert refused.value.retry is Retry.LATER
        assert "dra-driver mps" in refused.value.hint
    assert client.stop_unused(lambda _: nullcontext(True), deadline_s=1) == ()


def test_a_supervisor_that_does_not_answer_costs_the_deadline_and_no_more(folder: Path):
    path = socket_path(folder)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(DriverError) as late:
            unhindered(lambda: MpsClient(path).running(deadline_s=0.2))
        assert late.value.code == "sharing.mps-not-ready"


def test_daemons_that_no_claim_names_are_ended_and_others_are_not(supervisor: Supervisor):
    for number in (1, 2):
        supervisor.client.start(device(number), SETTINGS, deadline_s=60)
    assert supervisor.client.stop_unused(lambda one: nullcontext(one != device(2)), deadline_s=60) == (device(1).name,)
    assert [running.uuid for running in supervisor.client.running(deadline_s=60)] == [device(2).uuid]


def test_something_else_in_the_place_of_a_folder_is_an_error_that_is_explained(supervisor: Supervisor):
    folder = supervisor.data / "mps/d" / key_of(device().uuid)
    folder.mkdir(parents=True)
    (folder / "pipe").touch()
    with pytest.raises(DriverError) as refused:
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
    assert str(folder) in str(refused.value)
    assert f"`{refused.value.code}`" in (Path(__file__).parents[3] / "docs/error-codes.md").read_text()
    (folder / "pipe").unlink()
    supervisor.client.start(device(), SETTINGS, deadline_s=60)


def test_the_supervisor_takes_little_memory_and_imports_nothing_heavy(supervisor: Supervisor):
    for number in range(4):
        supervisor.client.start(device(number), SETTINGS, deadline_s=60)
        supervisor.client.start(device(number), replace(SETTINGS, active_thread_percentage=60), deadline_s=60)
    for number in range(4):
        supervisor.client.stop(device(number), deadline_s=60)
    pages = int(Path(f"/proc/{supervisor.process.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") / 2**20 <= 20
    code = f"import sys, dra_driver.node.mps.supervisor; print([m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert loaded.stdout.strip() == "[]"


def test_an_idle_supervisor_does_nothing(supervisor: Supervisor):
    supervisor.client.start(device(), SETTINGS, deadline_s=60)

    def switches() -> int:
        text = Path(f"/proc/{supervisor.process.pid}/status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)

    def is_idle_for_a_second() -> bool:
        before, ends = switches(), time.monotonic() + 1
        until(lambda: time.monotonic() > ends)
        return switches() - before < 5

    until(is_idle_for_a_second, "the supervisor to do nothing once the daemon runs")


def test_as_the_first_process_of_a_pid_namespace_the_supervisor_leaves_no_zombies(folder: Path):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True, timeout=120).returncode:
        pytest.skip("no PID namespace can be made here")
    supervisor = Supervisor(folder, "--hardware", "simulated:any", prefix=unshare)
    try:
        supervisor.begin()
        for _ in range(2):
            channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
            FakeClient(channel.pipe_dir, root=root_of(children(supervisor.process.pid)[0]))
            supervisor.client.stop(device(), deadline_s=60)
        supervisor.client.start(device(), SETTINGS, deadline_s=60)
        first = children(supervisor.process.pid)[0]
        assert [state_of(pid) for pid in children(first)].count("Z") == 0
        # A PID namespace ends with its first process, and the daemons in it too. The next supervisor starts them again.
        os.kill(first, signal.SIGKILL)
        supervisor.process.wait(60)
        until(lambda: processes_below(folder) == [])
        supervisor.begin()
        until(lambda: any(one.is_ready for one in supervisor.client.running(deadline_s=60)))
        view = root_of(children(supervisor.process.pid)[0])
        assert FakeClient(channel.pipe_dir, root=view).percentage == 50.0
    finally:
        supervisor.close()


def root_of(pid: int) -> str:
    """Return the path of the root folder of a process, which may have mounts that this process does not see."""
    return f"/proc/{pid}/root"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_with_real_hardware_a_daemon_has_the_devices_own_shared_memory(disk_folder: Path):
    folder = disk_folder
    fake = FakeMps(folder / "driver")
    hardware = ["--hardware", "nvidia", "--nvidia-driver-root", str(fake.root)]
    supervisor = Supervisor(folder, hardware=hardware)
    supervisor.begin()
    try:
        try:
            channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
        except DriverError as error:
            if error.code != "sharing.mps-no-permission":
                raise
            pytest.skip(f"mounts are not permitted here: {error}")
        shm = Path(channel.shm_dir)
        if os.geteuid() == 0:
            assert shm.is_mount()
            (pid,) = processes_below(folder)
            (shm / "segment").write_text("shared")
            assert Path(f"/proc/{pid}/root/dev/shm/segment").read_text() == "shared"
            assert not Path("/dev/shm/segment").exists()
            supervisor.end(signal.SIGKILL)
            supervisor.begin()
            supervisor.client.start(device(), SETTINGS, deadline_s=60)
            assert Path("/proc/self/mountinfo").read_text().count(str(shm)) == 1
        supervisor.client.stop(device(), deadline_s=60)
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()
        assert not shm.exists()
    finally:
        supervisor.close()


def test_a_driver_root_that_is_a_whole_system_is_entered(disk_folder: Path):
    folder = disk_folder
    fake = FakeMps(folder / "made")
    root = folder / "root"
    root.mkdir()
    steps = [
        f"mount --make-rprivate / && mount --rbind / {root} && mount -t tmpfs none {root}/opt",
        f"mkdir {root}/opt/bin && cp {fake.program} {root}/opt/bin/",
        'exec "$@"',
    ]
    prefix = ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh"]
    if subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=120).returncode:
        pytest.skip("mounts are not permitted here")
    hardware = ["--hardware", "nvidia", "--nvidia-driver-root", "/run/driver", "--nvidia-driver-root-mount", str(root)]
    supervisor = Supervisor(folder, hardware=hardware, prefix=prefix)
    supervisor.begin()
    try:
        channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
        (pid,) = processes_below(folder)
        assert Path(f"/proc/{pid}/root").readlink() == root
        assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2:3] == [b"/opt/bin/nvidia-cuda-mps-control"]
        assert FakeClient(channel.pipe_dir, root=root_of(supervisor.process.pid)).percentage == 50.0
        supervisor.client.stop(device(), deadline_s=60)
        assert processes_below(folder) == []
    finally:
        supervisor.close()


def test_daemons_and_their_servers_leave_the_supervisors_cgroup(folder: Path):
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tree = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if tree is None or not os.access(tree, os.W_OK) or os.geteuid() != 0:
        pytest.skip("no cgroup v2 tree can be written here")
    cgroup = tree / folder.name
    supervisor = Supervisor(folder, "--mps-cgroup", str(cgroup), hardware=["--hardware", "simulated:any"])
    try:
        supervisor.begin()
        try:
            channel = supervisor.client.start(device(), SETTINGS, deadline_s=60)
        except DriverError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        FakeClient(channel.pipe_dir)
        pids = processes_below(folder)
        assert len(pids) == 2
        assert {cgroup_of(pid) for pid in pids} == {f"/{folder.name}/{key_of(device().uuid)}"}
        supervisor.client.stop(device(), deadline_s=60)
    finally:
        supervisor.close()
        end_all(folder)
        for one in (*cgroup.glob("*/"), cgroup):
            with suppress(OSError):
                one.rmdir()


@pytest.fixture
def full_disk(folder: Path):
    """Yield a small file system in a folder with a short name, and a function that fills it to the last byte."""
    disk = folder / "d"
    disk.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)):
        pytest.skip("needs root and the right to mount a tmpfs")
    yield disk, lambda: fill(disk)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_new_supervisor_can_end_a_daemon_on_a_full_disk(full_disk):
    disk, take_all = full_disk
    supervisor = Supervisor(disk, "--hardware", "simulated:any")
    supervisor.begin()
    try:
        client = FakeClient(supervisor.client.start(device(), SETTINGS, deadline_s=60).pipe_dir)
        take_all()
        assert supervisor.end(signal.SIGKILL) != 0
        supervisor.begin()
        assert client.works()
        supervisor.client.stop(device(), deadline_s=60)
        assert not client.works()
        assert supervisor.client.running(deadline_s=60) == ()
        assert processes_below(disk) == []
    finally:
        supervisor.close()


@pytest.mark.parametrize("name", ["mps", "mps/d"])
def test_a_file_in_the_place_of_a_folder_is_a_clear_error(folder: Path, name: str):
    path = folder / "gpu.nvidia.com" / name
    path.parent.mkdir(parents=True)
    path.write_text("")
    command = [sys.executable, "-m", "dra_driver", "mps", "--kubelet-plugins-directory-path", str(folder)]
    done = subprocess.run([*command, "--hardware", "simulated:any"], check=False, capture_output=True, timeout=120)
    assert done.returncode == ExitCode.ENVIRONMENT
    assert b"[node.folder]" in done.stderr
    assert b"Traceback" not in done.stderr
