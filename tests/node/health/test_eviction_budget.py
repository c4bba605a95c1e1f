"""Which verdicts keep the effect NoExecute, with slots that the test grants; the store is a real file."""

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.base.wire import TaintEffect
from dra_driver.node.health.faults import Fault, FaultKey, FaultVerdict, HeldBackReason, Subject
from dra_driver.node.health.stored_health import HealthStore
from dra_driver.node.health.taints import EvictionBudget
from tests.node.health.support.parts import ONE, TWO
from tests.support.kept_files import locked
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until

NO_EXECUTE, NO_SCHEDULE = TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE


class Slots:
    def __init__(self, *answers):
        self.answers, self.holders = list(answers), []

    def acquire(self, holder):
        self.holders.append(holder)
        answer = self.answers.pop(0) if self.answers else 600.0
        if isinstance(answer, Exception):
            raise answer
        return answer


def verdict(subject, effect=NO_EXECUTE):
    return FaultVerdict(Fault(FaultKey.GPU_LOST, subject, "", 1.0, 1.0), effect, 1.0)


class Bench:
    def __init__(self, folder, *answers):
        self.slots, self.alerts, self.changes = Slots(*answers), [], 0
        self.budget = EvictionBudget(
            self.slots, node="n1", store=HealthStore(folder), changed=self.changed, alert=self.alerts.append
        )

    def changed(self):
        self.changes += 1

    def effects(self, *subjects):
        return [one.effect for one in self.budget.limited([verdict(subject) for subject in subjects])]


@pytest.fixture
def one():
    return Subject(ONE)


def test_grants_that_can_not_be_read_now_are_not_overwritten_and_read_later(tmp_path, one):
    bench = Bench(tmp_path, 0.0)
    bench.effects(one)
    until(lambda: bench.changes == 1, what="the grant")
    with locked(tmp_path / "state.db"):
        again = Bench(tmp_path)
        assert again.effects(one) == [NO_SCHEDULE]
    assert again.effects(one) == [NO_EXECUTE]


def test_pods_are_evicted_only_once_a_slot_is_granted(tmp_path, one):
    bench = Bench(tmp_path, 0.0)
    (first,) = bench.budget.limited([verdict(one)])
    assert (first.effect, first.held_back) == (NO_SCHEDULE, HeldBackReason.BUDGET)
    until(lambda: bench.changes == 1, what="the grant")
    assert bench.effects(one) == [NO_EXECUTE]
    assert bench.slots.holders == ["n1/gpu-0000-1b-00-0"]


def test_a_grant_survives_a_restart_and_ends_with_its_fault(tmp_path, one):
    bench = Bench(tmp_path, 0.0)
    bench.effects(one)
    until(lambda: bench.changes, what="the grant")
    again = Bench(tmp_path)
    assert again.effects(one) == [NO_EXECUTE]
    assert again.effects() == []
    assert again.effects(one) == [NO_SCHEDULE], "a fault that came back needs another slot"
    assert Bench(tmp_path).effects(one) == [NO_SCHEDULE]


def test_without_a_slot_pods_stay_and_an_alert_is_raised(tmp_path, one):
    bench = Bench(tmp_path, 400.0)
    bench.effects(one)
    until(lambda: bench.alerts, what="the alert")
    assert bench.effects(one) == [NO_SCHEDULE]
    assert "used up for 7 min" in bench.alerts[0]
    for _ in range(50):
        bench.effects(one)
    assert len(bench.slots.holders) == 1, "asked again although no slot is free yet"


def test_an_api_server_that_refuses_gives_no_slot(tmp_path, one):
    bench = Bench(tmp_path, ApiError("forbidden", "no rule allows it"))
    bench.effects(one)
    until(lambda: bench.alerts, what="the alert")
    assert bench.effects(one) == [NO_SCHEDULE]
    assert "no rule allows it" in bench.alerts[0]


def test_each_gpu_and_each_partition_needs_a_slot_of_its_own(tmp_path, one):
    bench = Bench(tmp_path, 0.0, 0.0)
    subjects = (one, Subject(TWO, (19, 3)), Subject(TWO, (19, 4)))
    bench.effects(*subjects)
    until(lambda: len(bench.slots.holders) == 3, what="three requests")
    assert sorted(bench.effects(*subjects)) == [NO_EXECUTE, NO_EXECUTE, NO_SCHEDULE]


def test_a_verdict_that_evicts_no_pods_needs_no_slot(tmp_path, one):
    bench = Bench(tmp_path)
    (same,) = bench.budget.limited([verdict(one, NO_SCHEDULE)])
    assert (same.effect, same.held_back) == (NO_SCHEDULE, None)
    assert not bench.slots.holders
    assert not (tmp_path / "health.db").exists()


def test_without_a_thread_to_ask_for_a_slot_pods_stay_until_the_next_verdicts(tmp_path, one):
    bench = Bench(tmp_path, 0.0)
    with no_thread_starts("evictions"):
        assert bench.effects(one) == [NO_SCHEDULE]
    assert bench.effects(one) == [NO_SCHEDULE]
    until(lambda: bench.changes == 1, what="the grant")
    assert bench.effects(one) == [NO_EXECUTE]
