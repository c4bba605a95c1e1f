"""The worker: jobs in turn, results when they come, what is in flight."""

import threading

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.hardware.nvidia.instances import Worker, WorkerStopped, ended
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


@pytest.fixture
def worker() -> Worker:
    made = Worker("test")
    yield made
    made.stop()


def test_a_result_can_be_taken_late(worker: Worker) -> None:
    gate = threading.Event()
    job = worker.submit(lambda: gate.wait(60) and 7)
    assert not ended(job, 0)
    gate.set()
    assert ended(job, 60)
    assert job.result(0) == 7


def test_what_a_job_raises_is_raised_where_the_result_is_taken(worker: Worker) -> None:
    job = worker.submit(lambda: 1 // 0)
    assert ended(job, 60)
    with pytest.raises(ZeroDivisionError):
        job.result(0)


def test_the_call_in_flight_is_seen_with_its_age(worker: Worker) -> None:
    gate = threading.Event()

    def work() -> None:
        worker.mark("nvmlSlow")
        gate.wait(60)

    job = worker.submit(work)
    until(lambda: worker.waits_for()[0] == "nvmlSlow")
    age = worker.waits_for()[1]
    until(lambda: worker.waits_for()[1] > age)
    assert worker.is_busy
    gate.set()
    assert ended(job, 60)
    until(lambda: not worker.is_busy)
    assert worker.waits_for() == ("", 0.0)


def test_a_job_that_nobody_wants_any_more_is_not_begun(worker: Worker) -> None:
    gate, done = threading.Event(), []
    worker.submit(lambda: gate.wait(60))
    unwanted = worker.submit(lambda: done.append("unwanted"))
    unwanted.cancel()
    last = worker.submit(lambda: done.append("last"))
    gate.set()
    assert ended(last, 60)
    assert done == ["last"]


def test_a_worker_that_was_stopped_ends_what_it_has_and_refuses_more() -> None:
    worker = Worker("test")
    before = worker.submit(lambda: 1)
    worker.stop()
    after = worker.submit(lambda: 2)
    assert ended(before, 60)
    assert before.result(0) == 1
    assert ended(after, 0)
    with pytest.raises(WorkerStopped):
        after.result(0)


def test_jobs_of_many_threads_are_each_done_once() -> None:
    worker, done = Worker("test"), []
    threads = [
        threading.Thread(target=lambda n=n: [worker.submit(lambda i=i: done.append((n, i))) for i in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended(worker.submit(lambda: None), 60)
    worker.stop()
    assert sorted(done) == [(n, i) for n in range(8) for i in range(50)]
    assert all([i for m, i in done if m == n] == list(range(50)) for n in range(8))


def test_a_preempted_job_is_started_again_after_the_one_that_preempted_it(worker: Worker) -> None:
    began, gate, order = threading.Event(), threading.Event(), []

    def read() -> str:
        worker.mark("first")
        order.append("reading begun")
        began.set()
        gate.wait(60)
        worker.mark("second")
        order.append("reading ended")
        return "read"

    reading = worker.submit(read, is_preemptible=True)
    assert began.wait(60)
    change = worker.submit(lambda: order.append("change"))
    gate.set()
    assert ended(change, 60)
    assert ended(reading, 60)
    assert order == ["reading begun", "change", "reading begun", "reading ended"]
    assert (reading.result(0), worker.is_busy) == ("read", False)


def test_jobs_that_give_way_do_so_for_no_other_such_job(worker: Worker) -> None:
    began, gate, order = threading.Event(), threading.Event(), []

    def read(name: str) -> None:
        worker.mark("first")
        began.set()
        gate.wait(60)
        worker.mark("second")
        order.append(name)

    jobs = [worker.submit(lambda name=name: read(name), is_preemptible=True) for name in ("a", "b")]
    assert began.wait(60)
    gate.set()
    assert all(ended(job, 60) for job in jobs)
    assert order == ["a", "b"]


def test_a_job_that_gave_way_to_the_end_of_its_worker_is_refused(worker: Worker) -> None:
    began, gate = threading.Event(), threading.Event()

    def read() -> None:
        worker.mark("first")
        began.set()
        gate.wait(60)
        worker.mark("second")

    reading = worker.submit(read, is_preemptible=True)
    assert began.wait(60)
    change = worker.submit(lambda: None)
    worker.stop()
    gate.set()
    assert ended(change, 60)
    assert ended(reading, 60)
    with pytest.raises(WorkerStopped):
        reading.result(0)
    assert not worker.is_busy


def test_a_worker_whose_thread_can_t_be_started_works_at_the_next_job(worker: Worker) -> None:
    for _ in range(3):
        with no_thread_starts("test"), pytest.raises(NodeError, match="test can't be started"):
            worker.submit(lambda: 7)
    assert not worker.is_busy
    job = worker.submit(lambda: 8)
    assert ended(job, 60)
    assert job.result(0) == 8
