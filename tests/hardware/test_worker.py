"""The worker: jobs in turn, results when they come, what is in flight."""

import threading

import pytest

from dra_driver.hardware.nvidia.worker import Worker, WorkerEnded
from tests.hardware.conftest import eventually


@pytest.fixture
def worker() -> Worker:
    made = Worker("test")
    yield made
    made.stop()


def test_a_result_can_be_taken_late(worker: Worker) -> None:
    gate = threading.Event()
    job = worker.submit(lambda: gate.wait(10) and 7)
    assert not job.wait(0)
    gate.set()
    assert job.wait(10)
    assert job.take() == 7


def test_what_a_job_raises_is_raised_to_who_takes_it(worker: Worker) -> None:
    job = worker.submit(lambda: 1 // 0)
    assert job.wait(10)
    with pytest.raises(ZeroDivisionError):
        job.take()


def test_the_call_in_flight_is_seen_with_its_age(worker: Worker) -> None:
    gate = threading.Event()

    def work() -> None:
        worker.mark("nvmlSlow")
        gate.wait(10)

    job = worker.submit(work)
    eventually(lambda: worker.waits_for()[0] == "nvmlSlow")
    age = worker.waits_for()[1]
    eventually(lambda: worker.waits_for()[1] > age)
    assert worker.is_busy
    gate.set()
    assert job.wait(10)
    eventually(lambda: not worker.is_busy)
    assert worker.waits_for() == ("", 0.0)


def test_a_job_that_nobody_wants_any_more_is_not_begun(worker: Worker) -> None:
    gate, done = threading.Event(), []
    worker.submit(lambda: gate.wait(10))
    unwanted = worker.submit(lambda: done.append("unwanted"))
    unwanted.drop()
    last = worker.submit(lambda: done.append("last"))
    gate.set()
    assert last.wait(10)
    assert done == ["last"]


def test_a_worker_that_was_stopped_ends_what_it_has_and_refuses_more() -> None:
    worker = Worker("test")
    before = worker.submit(lambda: 1)
    worker.stop()
    after = worker.submit(lambda: 2)
    assert before.wait(5)
    assert before.take() == 1
    assert after.wait(0)
    with pytest.raises(WorkerEnded):
        after.take()
