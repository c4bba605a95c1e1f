"""The turns of the health monitor, with a vendor that reports what the test gives it; the files are real."""

import inspect
import time
from dataclasses import replace

import pytest

from dra_driver.base.machine import PeopleTime
from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.faults import HealthPolicy
from dra_driver.node.health.monitor import ForgetFile, HealthFiles, HealthMonitor
from dra_driver.node.health.remediation import Remediation
from dra_driver.node.health.stored_health import CHANGE_SECONDS, HealthStore
from tests.node.health.support.parts import BOOT, ONE, TWO, gpu, reading, report, shown, xid
from tests.support.kept_files import damage_all, locked, state_of

FACTS = Facts("nvidia", gpus=(gpu(ONE), gpu(TWO)))
HALF = Facts("nvidia", gpus=(gpu(ONE),))


class Reporter:
    def __init__(self):
        self.reports, self.bus, self.position = [], {}, None

    def watch_health(self, notify, *, log_position):
        self.position = log_position

    def health(self, *, is_urgent, patience_s):
        return self.reports.pop(0) if self.reports else HealthReport()

    def bus_states(self, gpus):
        return {one: self.bus.get(one, BusState.HERE) for one in gpus}

    def end_health(self):
        pass


class Bench:
    """A monitor whose turns are taken by the test, with a clock of its own."""

    def __init__(self, folder, boot=BOOT, *, whole=True, looked=True):
        self.reporter, self.folder, self.at, self.notified = Reporter(), folder, 1000.0, []
        self.cordons, self.forget = CordonFile(folder), ForgetFile(folder)

        def now():
            return self.at

        self.monitor = HealthMonitor(
            self.reporter, HealthFiles(HealthStore(folder), self.cordons, self.forget), policy=HealthPolicy(),
            boot_id=boot, changed=lambda: self.notified.append(shown(self.monitor.now.faults)),
            people=PeopleTime(now, now),
        )  # fmt: skip
        if looked:
            self.monitor.completed(FACTS if whole else HALF)

    def turn(self, *reports):
        for one in reports or (HealthReport(),):
            self.at += 1
            self.reporter.reports = [one]
            self.monitor._turn()
        return shown(self.monitor.now.faults)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_fault_is_reported_once_and_keeps_its_time_over_ten_restarts(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(report(xid(95, at=900.25), reading(901)))
    before = {(fault.key, fault.since) for fault in bench.monitor.now.faults}
    for _ in range(10):
        bench = Bench(tmp_path)
        bench.turn()
        assert {(fault.key, fault.since) for fault in bench.monitor.now.faults} == before
    assert bench.notified == [{("needs-reset", "xid-95"), ("xid", "95")}]
    bench.turn(HealthReport(), report(reading(905)))
    assert len(bench.notified) == 1


def test_nothing_is_known_before_the_gpus_were_asked_because_a_fault_may_not_have_been_written(tmp_path):
    """The agent before knew of a fault and could not write it to a full disk: this one finds it in its first turn."""
    Bench(tmp_path).turn()
    bench = Bench(tmp_path)
    bench.monitor._cordons.refresh()
    assert bench.monitor.is_loaded
    assert not bench.monitor.is_known
    during: list[bool] = []
    bench.monitor._failed_tests = lambda _: during.append(bench.monitor.is_known)
    bench.turn(report(reading(bench.at + 0.5, recovery_action=1)))
    assert during == [False], "the fault was read, and is not told yet"
    assert bench.monitor.is_known
    assert bench.monitor.now.faults


def test_a_node_without_gpus_knows_all_after_a_turn(tmp_path):
    bench = Bench(tmp_path, looked=False)
    bench.monitor.completed(Facts("nvidia"))
    bench.turn()
    assert bench.monitor.is_known


def test_the_turn_that_completes_what_is_known_says_so_without_any_fault(tmp_path):
    """A turn before the first scan found nothing, and the scan's own question came before the turn after it."""
    bench = Bench(tmp_path, looked=False)
    bench.turn()
    assert not bench.monitor.is_known
    bench.monitor.completed(FACTS)
    before = len(bench.notified)
    bench.turn()
    assert bench.monitor.is_known
    assert len(bench.notified) == before + 1
    bench.turn()
    assert len(bench.notified) == before + 1


def test_a_scan_while_the_store_is_read_again_is_complete(tmp_path, monkeypatch):
    """The agent gets its role, which reads the store again, while the first scan is under way."""
    bench, read = Bench(tmp_path, looked=False), HealthStore.read

    def read_during_a_scan(store):
        bench.monitor.completed(FACTS)
        return read(store)

    monkeypatch.setattr(HealthStore, "read", read_during_a_scan)
    bench.monitor._load(has_role=True)
    bench.turn()
    assert bench.monitor.is_known


def test_a_monitor_is_needed_while_the_disk_holds_faults_that_count(tmp_path):
    bench = Bench(tmp_path)
    assert not bench.monitor.is_needed
    bench.turn(report(reading(901, recovery_action=1)))
    assert Bench(tmp_path).monitor.is_needed
    bench.turn(*(report(reading(at, recovery_action=0)) for at in (902, 903, 904)))
    assert not bench.monitor.now.faults
    assert bench.monitor.is_needed, (
        "otherwise it would be forgotten how often the fault came, and a flapping fault would end at once"
    )
    bench.at += 7200
    bench.turn(report(reading(bench.at, recovery_action=0)))
    assert not bench.monitor.is_needed


def test_what_was_reported_before_the_first_look_at_the_hardware_is_not_lost(tmp_path):
    bench = Bench(tmp_path, looked=False)
    bench.reporter.reports = [report(xid(95, at=900.0), log_position=77)]
    bench.monitor._turn()
    assert bench.monitor._record.log_position == -1
    bench.monitor.completed(FACTS)
    bench.monitor._turn()
    assert shown(bench.monitor.now.faults) == {("needs-reset", "xid-95"), ("xid", "95")}
    assert bench.monitor._record.log_position == 77


def test_xids_of_gpus_that_belong_to_another_driver_are_not_counted(bench):
    bench.turn(report(xid(79, address="0000:99:00.0"), xid(13)))
    assert bench.monitor.now.xids == {13: 1}


def test_a_kernel_log_that_can_t_be_read_is_a_problem_until_it_can(bench):
    bench.turn(HealthReport(problem="the kernel log /dev/kmsg can't be read"))
    assert [one.message for one in bench.monitor.now.problems] == ["the kernel log /dev/kmsg can't be read"]
    bench.turn()
    assert bench.monitor.now.problems == ()


def test_many_application_xids_are_counted_without_a_notification(bench):
    bench.turn()
    notified = len(bench.notified)
    for n in range(50):
        bench.turn(report(*(xid(13, at=1000 + n + m / 10) for m in range(10))))
    assert len(bench.notified) == notified
    assert bench.monitor.now.xids == {13: 500}


def test_a_gpu_that_vanishes_from_the_facts_is_lost_even_after_a_restart(tmp_path):
    bench = Bench(tmp_path)
    bench.turn()
    assert [one.is_lost for one in bench.monitor.completed(Facts("nvidia", gpus=(gpu(ONE),))).gpus] == [False, True]
    assert bench.turn() == {("gpu-lost", "")}
    again = Bench(tmp_path, whole=False)
    assert len(again.monitor.completed(HALF).gpus) == 2
    assert again.turn() == {("gpu-lost", "")}


def test_a_forgotten_gpu_is_not_missing_any_more(bench):
    bench.turn()
    half = Facts("nvidia", gpus=(gpu(ONE),))
    bench.monitor.completed(half)
    bench.turn()
    bench.forget.ask(TWO)
    bench.forget.ask("../../etc/passwd")
    assert bench.turn() == set()
    assert bench.monitor.completed(half) == half
    assert bench.turn() == set()


def test_a_gpu_that_hangs_is_not_answering_until_it_answers(bench):
    hanging = (Problem("hardware.gpu-not-answering", TWO, ""),)
    bench.monitor.completed(Facts("nvidia", gpus=(gpu(ONE),), problems=hanging))
    assert bench.turn() == {("not-answering", "")}
    bench.monitor.completed(FACTS)
    assert bench.turn(*[HealthReport()] * 3) == set()


def test_a_gpu_that_is_dead_on_the_bus_is_lost_and_one_bound_to_another_driver_is_not(bench):
    bench.reporter.bus = {ONE: BusState.DEAD, TWO: BusState.ELSEWHERE}
    bench.turn()
    assert [(fault.key, fault.subject.gpu) for fault in bench.monitor.now.faults] == [("gpu-lost", ONE)]


def test_gpus_are_unmonitored_while_the_library_does_not_answer(bench):
    assert bench.turn(HealthReport(silent_s=29)) == set()
    assert bench.turn(HealthReport(silent_s=31)) == {("unmonitored", "")}
    answers = [report(reading(1000 + n), reading(1000 + n, TWO)) for n in range(3)]
    assert bench.turn(*answers) == set()


def test_a_cordon_is_reported_when_it_begins_and_when_it_ends(bench):
    bench.turn()
    notified = len(bench.notified)
    bench.cordons.add(Cordon("gpu-one", "noise", bench.at, until=bench.at + 3))
    bench.turn()
    assert [one.device for one in bench.monitor.now.cordons] == ["gpu-one"]
    bench.turn(*[HealthReport()] * 3)
    assert bench.monitor.now.cordons == ()
    assert len(bench.notified) == notified + 2


def test_a_broken_cordon_file_keeps_the_last_cordons(bench):
    bench.cordons.add(Cordon("gpu-one", "noise", bench.at))
    bench.turn()
    (bench.folder / "cordons.json").write_text("{")
    bench.turn()
    assert [one.device for one in bench.monitor.now.cordons] == ["gpu-one"]
    assert [one.code for one in bench.monitor.now.problems] == ["health.cordons"]


def test_a_reboot_forgets_faults_and_gpus(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(report(xid(95)))
    again = Bench(tmp_path, boot="another")
    assert again.turn() == set()
    assert again.monitor._record.log_position == -1


def test_the_kernel_log_is_read_on_after_a_restart(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(report(xid(95), log_position=77))
    again = Bench(tmp_path)
    again.monitor.start()
    again.monitor.stop()
    assert again.reporter.position == 77


@pytest.mark.parametrize("name", ["state.db", "health.db"])
@pytest.mark.parametrize("damage", [b"garbage" * 999, b""])
def test_a_damaged_store_is_replaced(tmp_path, damage, name):
    (tmp_path / name).write_bytes(damage)
    bench = Bench(tmp_path)
    assert bench.turn(report(xid(95))) == {("needs-reset", "xid-95"), ("xid", "95")}
    assert Bench(tmp_path).turn() == {("needs-reset", "xid-95"), ("xid", "95")}


def test_what_was_known_is_known_again_once_the_store_can_be_read(tmp_path):
    """A lost GPU, a fault and its start, and what was found meanwhile."""
    bench = Bench(tmp_path)
    bench.turn(report(xid(95, at=900.25), reading(901)))
    with locked(tmp_path / "state.db"):
        before = state_of(tmp_path)
        again = Bench(tmp_path, whole=False)
        again.turn(report(xid(79, address=ONE, at=1001)))
        assert not again.monitor.is_known
        assert [one.code for one in again.monitor.now.problems] == ["health.cordons", "health.store"]
        assert state_of(tmp_path) == before
    again.turn(HealthReport())
    assert not again.monitor.is_known, "the facts of the last scan lack the lost GPU"
    assert [one.pci_address for one in again.monitor.completed(HALF).gpus if one.is_lost] == [TWO]
    assert again.monitor.is_known
    assert {("needs-reset", "xid-95"), ("gpu-lost", "")} <= again.turn(HealthReport())
    assert {one.since for one in again.monitor.now.faults if one.value == "xid-95"} == {900.25}
    assert again.monitor.now.problems == ()


def test_after_damage_gpus_are_known_again_once_each_was_looked_at(tmp_path):
    Bench(tmp_path).turn(report(xid(95)))
    damage_all(tmp_path, "health.db")
    for _ in range(2):  # the first one ends before it has looked at every GPU
        bench = Bench(tmp_path)
        bench.turn(report(reading(bench.at + 0.5, ONE)))
        bench.monitor.completed(FACTS)
        assert not bench.monitor.is_known
    bench.turn(report(reading(bench.at + 0.5, ONE), reading(bench.at + 0.5, TWO)))
    assert bench.monitor.is_known
    bench.at += CHANGE_SECONDS
    bench.turn()
    assert (tmp_path / "state.db.damaged").exists()
    again = Bench(tmp_path)
    again.turn()
    assert again.monitor.is_known


def test_a_damaged_store_loses_no_fault_that_the_older_file_has(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(report(xid(95, at=900.25)))
    (tmp_path / "state.db").write_bytes(b"garbage" * 999)
    again = Bench(tmp_path)
    again.turn()
    assert {one.since for one in again.monitor.now.faults} == {900.25}
    assert not again.monitor.is_known, "no GPU was looked at since"


def test_a_gpu_that_can_not_be_read_after_damage_is_not_out_of_use_for_good(tmp_path):
    (tmp_path / "health.db").write_bytes(b"garbage" * 999)
    bench = Bench(tmp_path)
    bench.turn()
    bench.monitor.completed(FACTS)
    bench.turn(*(report(silent_s=float(second)) for second in range(10)))
    assert not bench.monitor.is_known
    bench.at += 60
    bench.turn()
    assert bench.monitor.is_known


def test_cordons_that_can_not_be_read_after_a_restart_are_those_that_were_read_last(tmp_path):
    bench = Bench(tmp_path)
    bench.cordons.add(Cordon("gpu-0000-1b-00-0", "noisy fan", 1.0))
    bench.turn()
    (tmp_path / "cordons.json").write_text("{")
    again = Bench(tmp_path)
    again.turn()
    assert [one.device for one in again.monitor.now.cordons] == ["gpu-0000-1b-00-0"]
    assert again.monitor.is_known
    assert [one.code for one in again.monitor.now.problems] == ["health.cordons"]
    assert (tmp_path / "cordons.json").read_text() == "{", "a file that people write was touched"


def test_without_any_knowledge_of_the_cordons_no_device_counts_as_known(tmp_path):
    (tmp_path / "cordons.json").mkdir()
    bench = Bench(tmp_path)
    bench.turn(HealthReport())
    bench.monitor.completed(FACTS)
    assert not bench.monitor.is_known
    (tmp_path / "cordons.json").rmdir()
    bench.turn(HealthReport())
    assert bench.monitor.is_known


class SetClocks(Bench):
    """A monitor for whom the time that people read differs from the boot time by `ahead`, which people may set."""

    def __init__(self, folder, ahead):
        self.ahead = ahead
        super().__init__(folder)
        self.monitor = HealthMonitor(
            self.reporter, HealthFiles(HealthStore(folder), self.cordons, self.forget), policy=HealthPolicy(),
            boot_id=BOOT, changed=lambda: None, people=PeopleTime(lambda: self.at, lambda: self.at + self.ahead),
        )  # fmt: skip
        self.monitor.completed(FACTS)

    def since(self):
        return {one.since for one in self.monitor.now.faults}


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 10 * 365 * 86400.0])
def test_a_clock_that_is_set_delays_nothing_and_forgets_nothing(tmp_path, step):
    bench = SetClocks(tmp_path, 1e9)
    bench.turn(report(reading(1000.5, ONE, recovery_action=1)))
    assert bench.since() == {1e9 + 1000.5}
    bench.ahead += step
    bench.reporter.bus[TWO] = BusState.GONE
    bench.at += 11
    bench.turn(report(xid(95, at=bench.at)))
    assert ("gpu-lost", "") in shown(bench.monitor.now.faults), "a dead GPU went unnoticed"
    assert 1e9 + step + 1000.5 in bench.since(), "people read a time that is not theirs"
    assert max(bench.since()) <= bench.at + bench.ahead
    again = SetClocks(tmp_path, bench.ahead - step / 2)
    again.turn(report(reading(bench.at + 1, ONE, recovery_action=2)))
    assert ("needs-reboot", "node-reboot") in shown(again.monitor.now.faults), "a reading was taken for an old one"
    assert again.since() == {one - step / 2 for one in bench.since()} | {1e9 + step / 2 + bench.at + 1}


def test_known_gpus_are_written_when_a_gpu_changes_and_not_for_its_partitions(bench, monkeypatch):
    write, written = bench.monitor._store.write, []
    monkeypatch.setattr(bench.monitor._store, "write", lambda documents: (written.append(documents), write(documents)))
    bench.turn()
    partitioned = replace(gpu(ONE), mig_enabled=True, unusable=((19, 0),))
    for facts in (Facts("nvidia", gpus=(partitioned, gpu(TWO))), FACTS):
        bench.monitor.completed(facts)
        bench.turn()
    assert len(written) == 1
    bench.monitor.completed(Facts("nvidia", gpus=(replace(gpu(ONE), minor=7), gpu(TWO))))
    bench.at += CHANGE_SECONDS
    bench.turn()
    assert len(written) == 2


def test_a_fault_that_takes_a_gpu_out_is_written_at_once_and_other_changes_once_in_ten_seconds(tmp_path):
    bench = Bench(tmp_path)
    bench.turn()
    began, changes = bench.at, []
    for number in range(1, 21):  # what is known of a GPU changes each second
        bench.monitor.completed(Facts("nvidia", gpus=(replace(gpu(ONE), minor=number), gpu(TWO))))
        before = HealthStore(tmp_path).read()
        bench.turn()
        if HealthStore(tmp_path).read() != before:
            changes.append(bench.at - began)
    assert changes == [CHANGE_SECONDS, 2 * CHANGE_SECONDS]
    bench.turn(report(xid(95)))
    again = Bench(tmp_path)
    assert ("needs-reset", "xid-95") in again.turn()


def test_faults_are_raised_although_the_store_cannot_be_written(bench, monkeypatch):
    (bench.folder / "health.db").mkdir()
    assert bench.turn(report(xid(95))) == {("needs-reset", "xid-95"), ("xid", "95")}


@pytest.mark.parametrize("part", [PeopleTime, Remediation])
def test_nobody_sets_the_clock_by_which_faults_and_remediations_are_timed(part):
    clock = inspect.signature(part).parameters["clock"].default
    assert clock() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=600.0)
