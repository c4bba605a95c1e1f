"""One daemon: started once, ready, its limits in force; changed under its clients, ended without a trace."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError, Retry
from dra_driver.base.wire import MpsSettings
from dra_driver.node.mps.launch import find_program
from dra_driver.node.mps.supervision import DaemonSupervisor, bound_logs
from tests.support.mps.fake_mps import FakeClient, FakeMps
from tests.support.mps.parts import SETTINGS, Rig, device, processes_below
from tests.support.waiting import until

SECONDS = {
    "hang": 3,
    "crash": 3,
}  # how long a start waits; after other faults it ends earlier


def code_of(error: pytest.ExceptionInfo[DriverError]) -> str:
    return error.value.code


def test_a_started_daemon_is_ready_and_has_its_limits(rig: Rig):
    at = rig.start()
    assert rig.ask("get_default_active_thread_percentage") == "50.0"
    assert rig.ask("get_default_device_pinned_mem_limit 0") == "4G"
    client = FakeClient(at.pipe)
    assert (client.percentage, client.memory_mib) == (50.0, 4096)


def test_starting_twice_gives_the_same_daemon(rig: Rig):
    assert rig.start().pipe == rig.start().pipe
    pid = rig.pid()
    rig.start()
    assert rig.pid() == pid
    assert processes_below(rig.root) == [pid]


def test_each_device_has_a_daemon_that_sees_it_alone(rig: Rig):
    rig.start(1)
    rig.start(2)
    for number in (1, 2):
        words = Path(f"/proc/{rig.pid(number)}/environ").read_bytes().split(b"\0")
        assert f"CUDA_VISIBLE_DEVICES={device(number).uuid}".encode() in words
    assert rig.at(1).pipe != rig.at(2).pipe


def test_a_daemon_inherits_nothing_of_the_supervisors_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "token")
    rig.start()
    assert b"SECRET" not in Path(f"/proc/{rig.pid()}/environ").read_bytes()


def test_new_limits_apply_to_new_clients_and_do_not_end_running_ones(rig: Rig):
    at = rig.start()
    first = FakeClient(at.pipe)
    rig.start(settings=replace(SETTINGS, active_thread_percentage=70, pinned_memory_limit=6 << 30))
    assert first.works()
    second = FakeClient(at.pipe)
    assert second.server_pid == first.server_pid
    assert (second.percentage, second.memory_mib) == (70.0, 6144)


def test_a_limit_for_the_device_itself_overrides_the_general_one(rig: Rig):
    rig.start(settings=replace(SETTINGS, per_device_limits={device().uuid: 2 << 30}))
    assert rig.ask("get_default_device_pinned_mem_limit 0") == "2G"


def test_without_limits_a_client_has_the_whole_device(rig: Rig):
    client = FakeClient(rig.start(settings=MpsSettings()).pipe)
    assert (client.percentage, client.memory_mib) == (100.0, 0)


@pytest.mark.parametrize(
    "settings", [replace(SETTINGS, multi_user=True), replace(SETTINGS, pinned_memory_limit=None)], ids=["mode", "limit"]
)
def test_a_setting_that_a_running_daemon_cannot_change_is_refused_and_changes_nothing(rig: Rig, settings: MpsSettings):
    client = FakeClient(rig.start().pipe)
    with pytest.raises(DriverError) as refused:
        rig.start(settings=settings)
    assert code_of(refused) == "sharing.mps-other-settings"
    assert client.works()
    assert rig.ask("get_default_active_thread_percentage") == "50.0"
    assert [report.state.settings for report in rig.supervisor.reports()] == [SETTINGS]


def test_multi_user_mode_lets_clients_of_all_users_share_one_server(rig: Rig):
    at = rig.start(settings=replace(SETTINGS, multi_user=True))
    assert "-multiuser-server" in Path(f"/proc/{rig.pid()}/cmdline").read_text().split("\0")
    first = FakeClient(at.pipe)
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    at.path.parent.parent.chmod(0o755)
    os.seteuid(65534)
    try:
        second = FakeClient(at.pipe)
    finally:
        os.seteuid(0)
    assert second.server_pid == first.server_pid


def test_a_stopped_daemon_leaves_neither_processes_nor_files(rig: Rig):
    client = FakeClient(rig.start().pipe)
    assert len(processes_below(rig.root)) == 2
    rig.stop()
    assert not client.works()
    assert processes_below(rig.root) == []
    assert list(rig.root.iterdir()) == []
    assert rig.supervisor.reports() == ()


def test_stopping_a_daemon_that_does_not_run_is_not_an_error(rig: Rig):
    rig.stop()
    rig.start()
    rig.stop()
    rig.stop()
    assert list(rig.root.iterdir()) == []


@pytest.mark.parametrize("fault", ["quit hang", "quit refuse I will not", "quit crash"])
def test_a_daemon_that_does_not_quit_is_killed(rig: Rig, fake: FakeMps, fault: str):
    FakeClient(rig.start().pipe)
    fake.break_(fault)
    rig.stop(seconds=0.5)
    assert processes_below(rig.root) == []
    assert list(rig.root.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("start refuse No GPU for MPS", "sharing.mps-refused", "No GPU for MPS"),
        ("start hang", "sharing.mps-not-ready", "in time"),
        ("serve crash", "sharing.mps-not-ready", "ended at once"),
        ("get_default_active_thread_percentage hang", "sharing.mps-not-ready", "not ready in time"),
        ("get_server_list hang", "sharing.mps-not-ready", "get_server_list"),
        ("set_default_active_thread_percentage refuse Failed: unsupported", "sharing.mps-refused", "unsupported"),
        ("set_default_device_pinned_mem_limit refuse Invalid device", "sharing.mps-refused", "Invalid device"),
        ("set_default_device_pinned_mem_limit crash", "sharing.mps-refused", "set_default_device_pinned_mem_limit"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(rig: Rig, fake: FakeMps, fault: str, code: str, words: str):
    fake.break_(fault)
    with pytest.raises(DriverError) as failed:
        rig.start(seconds=SECONDS.get(fault.rpartition(" ")[2], 30))
    assert code_of(failed) == code
    assert words in str(failed.value)
    assert failed.value.retry is not Retry.NEVER
    until(lambda: processes_below(rig.root) == [], what="the processes are gone")
    assert list(rig.root.iterdir()) == []
    assert rig.supervisor.reports() == ()
    fake.heal()
    rig.start()


def test_the_reason_of_a_failed_start_is_no_line_of_an_earlier_daemon(rig: Rig, fake: FakeMps):
    rig.start()
    log = rig.at().log / "control.log"
    with log.open("a") as file:
        file.write("a line of the earlier daemon\n")
    fake.break_("serve crash")
    os.kill(rig.pid(), signal.SIGKILL)
    until(lambda: processes_below(rig.root) == [], what="the daemon is gone")
    with pytest.raises(DriverError) as failed:
        rig.start()
    assert "ended at once" in str(failed.value)
    assert "earlier daemon" not in str(failed.value)


def test_a_slow_daemon_is_waited_for_within_the_deadline(rig: Rig, fake: FakeMps):
    fake.break_("serve slow 0.3", "get_server_list slow 0.2")
    rig.start(seconds=10)


def test_a_daemon_that_hangs_is_an_error_and_keeps_its_clients(rig: Rig, fake: FakeMps):
    client = FakeClient(rig.start().pipe)
    fake.break_("get_default_active_thread_percentage hang")
    with pytest.raises(DriverError) as failed:
        rig.start(seconds=0.5)
    assert code_of(failed) == "sharing.mps-not-ready"
    assert client.works()


def test_limits_that_are_refused_leave_the_old_ones_in_force(rig: Rig, fake: FakeMps):
    rig.start()
    fake.break_("set_default_device_pinned_mem_limit refuse Invalid")
    with pytest.raises(DriverError):
        rig.start(settings=replace(SETTINGS, active_thread_percentage=80, pinned_memory_limit=8 << 30))
    assert rig.ask("get_default_active_thread_percentage") == "50.0"
    assert [report.state.settings for report in rig.supervisor.reports()] == [SETTINGS]


def test_a_daemon_that_writes_no_pid_file_is_found_anyway(rig: Rig, fake: FakeMps):
    other = "from dra_driver.node.mps import simulated_daemon\n    simulated_daemon.PID_FILE = 'other'"
    fake.program.write_text(fake.program.read_text().replace("return Faulty", f"{other}\n    return Faulty"))
    at = rig.start()
    assert not (at.pipe / "nvidia-cuda-mps-control.pid").exists()
    client = FakeClient(at.pipe)
    client.end()
    assert rig.start().pipe == at.pipe
    assert len(processes_below(rig.root)) == 2
    rig.stop()
    assert processes_below(rig.root) == []


def test_without_the_program_the_error_names_the_driver_root(folder: Path):
    (folder / "d").mkdir()
    supervisor = DaemonSupervisor(folder / "d", lambda: find_program(folder / "none", is_private=False), boot_id="b")
    with pytest.raises(DriverError, match=str(folder / "none")) as failed:
        supervisor.start(device(), SETTINGS, time.monotonic() + 60)
    assert code_of(failed) == "sharing.mps-no-program"
    supervisor.stop(device(), time.monotonic() + 60)


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_anything_is_created(folder: Path):
    deep = folder / ("x" * 80)
    deep.mkdir()
    FakeMps(folder / "driver")
    supervisor = DaemonSupervisor(deep, lambda: find_program(folder / "driver", is_private=False), boot_id="b")
    with pytest.raises(DriverError) as failed:
        supervisor.start(device(), SETTINGS, time.monotonic() + 60)
    assert code_of(failed) == "sharing.mps-path-too-long"
    assert list(deep.iterdir()) == []


def test_a_pid_file_that_a_client_wrote_leads_to_no_other_process(rig: Rig):
    rig.start()
    mine = os.getpid()
    (rig.at().pipe / "nvidia-cuda-mps-control.pid").write_text(str(mine))
    rig.start()
    assert [report.state.process.pid for report in rig.supervisor.reports() if report.state.process] != [mine]
    rig.stop()
    assert processes_below(rig.root) == []


def test_links_that_a_client_planted_are_removed_and_not_followed(rig: Rig, folder: Path):
    precious = folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    at = rig.start()
    (at.shm / "link").symlink_to(precious)
    (at.pipe / "deep").mkdir()
    (at.pipe / "deep/link").symlink_to(precious)
    rig.stop()
    assert (precious / "file").read_text() == "kept"
    assert list(rig.root.iterdir()) == []


def test_logs_do_not_grow_for_ever(rig: Rig):
    at = rig.start()
    log = at.log / "server.log"
    log.write_bytes(b"".join(b"%06d\n" % number for number in range(3000)))
    bound_logs([at], max_bytes=10_000)
    lines = log.read_bytes().splitlines()
    assert lines[-1] == b"002999"
    assert len(lines) < 750
    assert all(len(line) == 6 for line in lines)


def test_stopping_a_daemon_does_not_end_the_servers_of_another_device(rig: Rig):
    other = FakeClient(rig.start(1).pipe)
    FakeClient(rig.start(2).pipe)
    os.kill(rig.pid(2), signal.SIGSTOP)  # it can't answer
    rig.stop(2, seconds=0.5)
    assert other.works()
