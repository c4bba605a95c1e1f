"""The supervisor: a daemon that ends by itself is started again; one that can't be is reported and retried later."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import DriverError
from dra_driver.node.mps import processes, supervision
from dra_driver.node.mps.client import call_supervisor
from dra_driver.node.mps.daemon_folder import key_of
from dra_driver.node.mps.supervisor import CONNECTIONS, SupervisorServer
from tests.support.mps.fake_mps import FakeClient, FakeMps
from tests.support.mps.parts import SETTINGS, Rig, device, end_all, processes_below
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


def kill(rig: Rig, number: int = 0) -> int:
    pid = rig.pid(number)
    os.kill(pid, signal.SIGKILL)
    return pid


def is_repaired(rig: Rig, was: int) -> bool:
    (report,) = rig.supervisor.reports()
    return report.is_ready and report.state.process is not None and report.state.process.pid != was


def test_a_daemon_that_was_killed_is_started_again_with_its_settings(rig: Rig):
    rig.start()
    was = kill(rig)
    until(lambda: is_repaired(rig, was))
    assert rig.ask("get_default_active_thread_percentage") == "50.0"
    assert rig.ask("get_default_device_pinned_mem_limit 0") == "4G"
    (report,) = rig.supervisor.reports()
    assert (report.restarts, report.error) == (1, "")


def test_a_daemon_for_whose_repair_no_thread_can_be_started_is_repaired_later(rig: Rig, caplog):
    rig.start()
    with no_thread_starts("repair"), caplog.at_level(logging.WARNING):
        was = kill(rig)
        until(lambda: "MPS daemon not repaired yet" in caplog.text)
    until(lambda: is_repaired(rig, was))


def test_a_request_for_which_no_thread_can_be_started_fails_and_the_next_one_is_answered(folder: Path):
    server = SupervisorServer(folder / "mps.sock", SimpleNamespace(reports=list))
    serving = threading.Thread(target=server.run)
    serving.start()
    with no_thread_starts("request"):
        for _ in range(CONNECTIONS + 1):
            with pytest.raises(DriverError, match="request can't be started"):
                call_supervisor(folder / "mps.sock", "list", {}, 60.0)
    answer = call_supervisor(folder / "mps.sock", "list", {}, 60.0)
    assert answer["daemons"] == []
    server.stop()
    serving.join(60)


def test_clients_of_a_daemon_that_was_killed_go_on_and_new_ones_find_the_new_daemon(rig: Rig):
    at = rig.start()
    old = FakeClient(at.pipe)
    was = kill(rig)
    until(lambda: is_repaired(rig, was))
    assert old.works()
    new = FakeClient(at.pipe)
    assert new.server_pid != old.server_pid
    rig.stop()
    assert processes_below(rig.root) == []


def test_a_daemon_that_cannot_be_started_again_is_reported_until_it_can(rig: Rig, fake: FakeMps):
    rig.start()
    fake.break_("start refuse No GPU")
    kill(rig)
    until(lambda: "No GPU" in rig.supervisor.reports()[0].error)
    (report,) = rig.supervisor.reports()
    assert not report.is_ready
    fake.heal()
    until(lambda: rig.supervisor.reports()[0].is_ready)
    assert rig.supervisor.reports()[0].error == ""


def test_a_daemon_that_refuses_its_limits_is_not_left_without_them(rig: Rig, fake: FakeMps):
    rig.start()
    fake.break_("set_default_active_thread_percentage refuse Invalid")
    kill(rig)
    until(lambda: "Invalid" in rig.supervisor.reports()[0].error)
    until(lambda: processes_below(rig.root) == [])
    assert not rig.supervisor.reports()[0].is_ready
    fake.heal()
    until(lambda: rig.supervisor.reports()[0].is_ready)
    assert rig.ask("get_default_active_thread_percentage") == "50.0"


def test_a_daemon_that_hung_is_ready_again_once_it_answers(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervision, "CHECK_S", 30.0)  # on a busy machine a few commands take more than its second
    rig.start()
    os.kill(rig.pid(), signal.SIGSTOP)
    with pytest.raises(DriverError):
        rig.start(seconds=0.3)
    (report,) = rig.supervisor.reports()
    assert not report.is_ready
    assert "in time" in report.error
    os.kill(rig.pid(), signal.SIGCONT)
    until(lambda: rig.supervisor.reports()[0].is_ready)
    assert rig.supervisor.reports()[0].restarts == 0


def test_asking_for_a_daemon_that_just_ended_gives_a_new_one(rig: Rig):
    rig.start()
    was = kill(rig)
    rig.start()
    assert rig.pid() != was
    assert len(processes_below(rig.root)) == 1


def test_a_daemon_that_ends_a_second_time_is_not_started_again_at_once(folder: Path):
    rig = Rig(folder, delays_s=(0.0, 30.0))
    rig.supervisor.begin()
    rig.start()
    was = kill(rig)
    until(lambda: is_repaired(rig, was))
    kill(rig)
    until(lambda: rig.supervisor.reports()[0].error)
    assert processes_below(rig.root) == []
    rig.stop()
    rig.supervisor.close()


def test_the_next_supervisor_takes_over_daemons_that_run(folder: Path):
    first = Rig(folder)
    first.supervisor.begin()
    client = FakeClient(first.start().pipe)
    pid = first.pid()
    first.supervisor.close()
    second = Rig(folder)
    second.supervisor.begin()
    (report,) = second.supervisor.reports()
    assert (report.is_ready, report.state.settings, report.state.device) == (True, SETTINGS, device())
    assert second.start().pipe.exists()
    assert second.pid() == pid
    assert client.works()
    was = kill(second)
    until(lambda: is_repaired(second, was))
    second.supervisor.close()


def test_the_next_supervisor_starts_daemons_that_ended_meanwhile(folder: Path):
    first = Rig(folder)
    first.supervisor.begin()
    first.start()
    first.supervisor.close()
    was = kill(first)
    second = Rig(folder)
    second.supervisor.begin()
    until(lambda: is_repaired(second, was))
    second.supervisor.close()


def test_after_a_reboot_nothing_is_started_and_nothing_is_left(folder: Path):
    first = Rig(folder)
    first.supervisor.begin()
    first.start()
    first.supervisor.close()
    kill(first)
    second = Rig(folder, boot_id="boot-2")
    second.supervisor.begin()
    until(lambda: list(second.root.iterdir()) == [])
    assert second.supervisor.reports() == ()
    assert processes_below(second.root) == []
    second.supervisor.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1, "pid": "x"}'])
def test_a_record_that_cannot_be_read_is_removed_with_its_processes(folder: Path, text: str):
    first = Rig(folder)
    first.supervisor.begin()
    at = first.start()
    first.supervisor.close()
    (at.path / "state.json").write_text(text)
    second = Rig(folder)
    second.supervisor.begin()
    until(lambda: not at.path.exists())
    assert processes_below(folder) == []
    second.supervisor.close()


def test_a_hanging_daemon_delays_no_other_device(rig: Rig, fake: FakeMps):
    rig.start(1)
    fake.break_("start hang")
    failed: list[DriverError] = []

    def start() -> None:
        try:
            rig.start(2)
        except DriverError as error:
            failed.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    until(rig.at(2).path.exists)
    rig.stop(1)
    with pytest.raises(DriverError) as busy:
        rig.supervisor.start(device(2), SETTINGS, time.monotonic())
    assert busy.value.code == "sharing.mps-busy"
    until(lambda: processes_below(rig.at(2).path))
    end_all(rig.at(2).path)
    thread.join()
    assert [error.code for error in failed] == ["sharing.mps-not-ready"]


def test_many_commands_at_once_make_one_daemon(rig: Rig):
    threads = [threading.Thread(target=rig.start, kwargs={"seconds": 30}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes_below(rig.root)) == 1
    (report,) = rig.supervisor.reports()
    assert report.restarts == 0


def test_status_lists_the_servers_that_the_daemon_reports(rig: Rig):
    client = FakeClient(rig.start().pipe)
    report, servers = rig.supervisor.status(device(), time.monotonic() + 60)
    assert report.is_ready
    assert servers == {client.server_pid: "ACTIVE"}
    with pytest.raises(DriverError) as unknown:
        rig.supervisor.status(device(9), time.monotonic() + 60)
    assert unknown.value.code == "sharing.mps-not-running"


def test_nothing_is_remembered_of_devices_that_are_gone(rig: Rig):
    for number in range(3):
        rig.start(number)
        rig.stop(number)
    assert len(rig.supervisor._entries) == 0


def test_an_identity_is_not_that_of_a_later_process_with_the_same_pid():
    mine = processes.identify(os.getpid())
    assert mine is not None
    assert mine.is_alive()
    assert not processes.ProcessIdentity(mine.pid, mine.start_ticks + 1).is_alive()
    assert processes.open_pidfd(processes.ProcessIdentity(mine.pid, mine.start_ticks + 1)) is None


def test_keys_of_devices_are_short_and_differ():
    keys = {key_of(f"MIG-{number:08x}-0000-0000-0000-{other:012x}") for number in range(40) for other in range(40)}
    assert len(keys) == 1600
    assert {len(key) for key in keys} == {12}
