"""Calls that run at the same time share one core: real threads, and the kernel's view of them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin.rpc import shared_core
from dra_driver.plugin.rpc.call import RpcCall, RpcMethod
from dra_driver.plugin.rpc.server import RpcServer
from dra_driver.plugin.rpc.shared_core import TURN_SECONDS, SharedCore
from tests.support.waiting import until

SECONDS = 60.0
ALL = os.sched_getaffinity(0)
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="there is one core only")


class Worker:
    """A thread that answers calls: one call from `begin` to `end`. It waits for input until `close`."""

    def __init__(self, core: SharedCore) -> None:
        self._core = core
        self._may_begin, self._may_end, self._may_close = (threading.Event() for _ in range(3))
        self._is_there, self._has_begun, self._has_ended = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._is_there.wait(SECONDS)

    def _run(self) -> None:
        with self._core.thread():
            self._is_there.set()
            self._may_begin.wait(SECONDS)
            with self._core:
                self._has_begun.set()
                self._may_end.wait(SECONDS)
            self._has_ended.set()
            self._may_close.wait(SECONDS)

    def begin(self) -> Worker:
        self._may_begin.set()
        assert self._has_begun.wait(SECONDS)
        return self

    def end(self) -> None:
        self._may_end.set()
        assert self._has_ended.wait(SECONDS)

    def close(self) -> None:
        for event in (self._may_begin, self._may_end, self._may_close):
            event.set()
        self._thread.join(SECONDS)

    @property
    def cores(self) -> set[int]:
        return os.sched_getaffinity(self._thread.native_id or 0)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Four threads that share a core, with a clock that stands still."""
    core = SharedCore(clock=lambda: 0.0)
    with ExitStack() as stack:
        made = [Worker(core) for _ in range(4)]
        for worker in made:
            stack.callback(worker.close)
        yield made


def test_two_calls_run_on_any_core_and_from_three_calls_on_all_threads_on_one(workers: list[Worker]) -> None:
    first, second, third, idle = workers
    first.begin()
    second.begin()
    assert [worker.cores for worker in workers] == [ALL] * 4
    third.begin()
    assert len(idle.cores) == 1, "the next call begins there"
    assert first.cores == second.cores == third.cores == idle.cores
    second.end()
    assert first.cores == third.cores == second.cores != ALL
    third.end()
    assert [worker.cores for worker in workers] == [ALL] * 4, "one call is left"
    first.end()
    assert [worker.cores for worker in workers] == [ALL] * 4


def test_a_thread_that_was_started_within_a_call_is_free_after_the_calls(workers: list[Worker]) -> None:
    started, gate = list[threading.Thread](), threading.Event()

    def start_another() -> None:
        os.sched_setaffinity(0, first.cores)  # as a call's own thread, whose core the other one inherits
        started.append(threading.Thread(target=gate.wait, args=(SECONDS,), daemon=True))
        started[0].start()

    first, second, third, _ = workers
    for worker in (first, second, third):
        worker.begin()
    caller = threading.Thread(target=start_another)
    caller.start()
    caller.join(SECONDS)
    assert os.sched_getaffinity(started[0].native_id or 0) == first.cores != ALL
    for worker in (first, second, third):
        worker.end()
    assert os.sched_getaffinity(started[0].native_id or 0) == ALL
    gate.set()


def test_a_thread_that_begins_to_wait_for_calls_while_others_share_a_core_is_bound(workers: list[Worker]) -> None:
    for worker in workers[:3]:
        worker.begin()
    late = Worker(workers[0]._core)
    assert late.cores == workers[0].cores != ALL
    for worker in workers[:3]:
        worker.end()
    assert late.cores == ALL
    late.close()


def test_a_thread_that_answers_no_calls_any_more_is_not_bound(workers: list[Worker]) -> None:
    gone, first, second, third = workers
    gone.begin().end()
    still, may_end = threading.Event(), threading.Event()

    def serve_no_more() -> None:
        with gone._core.thread():
            pass
        still.set()
        may_end.wait(SECONDS)

    thread = threading.Thread(target=serve_no_more, daemon=True)
    thread.start()
    assert still.wait(SECONDS)
    for worker in (first, second, third):
        worker.begin()
    assert first.cores != ALL
    assert os.sched_getaffinity(thread.native_id or 0) == ALL
    may_end.set()


def test_after_its_turn_another_core_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    now, where = [0.0], iter(sorted(ALL)[:2])
    monkeypatch.setattr(shared_core, "present_core", lambda: next(where))
    core = SharedCore(clock=lambda: now[0])
    with ExitStack() as stack:
        made = [Worker(core) for _ in range(5)]
        for worker in made:
            stack.callback(worker.close)
        for worker in made[:3]:
            worker.begin()
        assert [worker.cores for worker in made] == [{min(ALL)}] * 5
        now[0] += TURN_SECONDS
        made[3].begin()
        assert [worker.cores for worker in made] == [ALL] * 5, "the kernel chooses where the next call begins"
        made[4].begin()
        assert [worker.cores for worker in made] == [{sorted(ALL)[1]}] * 5


def test_a_process_that_is_bound_to_some_cores_stays_on_them(workers: list[Worker]) -> None:
    some = set(sorted(ALL)[: max(2, len(ALL) - 1)])
    for worker in workers:
        os.sched_setaffinity(worker._thread.native_id or 0, some)
    first, second, third, _ = workers
    for worker in (first, second, third):
        worker.begin()
    assert first.cores == second.cores == third.cores < some
    for worker in (third, second, first):
        worker.end()
    assert [worker.cores for worker in workers] == [some] * 4


def test_a_process_on_one_core_stays_there(workers: list[Worker]) -> None:
    core = {min(ALL)}
    for worker in workers:
        os.sched_setaffinity(worker._thread.native_id or 0, core)
        worker.begin()
    for worker in workers:
        worker.end()
        assert worker.cores == core


@pytest.mark.parametrize(("number", "is_tried_again"), [(errno.EPERM, False), (errno.EINVAL, True)])
def test_where_it_is_refused_calls_run_without_it(
    monkeypatch: pytest.MonkeyPatch, workers: list[Worker], number: int, is_tried_again: bool
) -> None:
    kernels, asked = os.sched_setaffinity, list[object]()

    def refuse(thread: int, cores: Iterable[int]) -> None:
        asked.append(cores)
        if set(cores) < ALL:
            raise OSError(number, os.strerror(number))
        kernels(thread, cores)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    first, second, third, fourth = workers
    for worker in (first, second, third):
        worker.begin()
    first.end()
    second.end()
    before = len(asked)
    fourth.begin()
    Worker(fourth._core).begin().close()
    assert (len(asked) > before) == is_tried_again
    for worker in (third, fourth):
        assert worker.cores == ALL
        worker.end()
        assert worker.cores == ALL


class Served:
    """A server on a socket whose calls wait at a gate and then fail, or are answered; and its client."""

    def __init__(self, path: Path) -> None:
        self.gate, self.cores = threading.Event(), dict[str, set[int]]()
        self._before = set(threading.enumerate())
        read = v1.Claim.FromString
        listing = RpcMethod(self._list, read, 8, is_stream=True)
        self.server = RpcServer({"/test/Wait": RpcMethod(self._wait, read, 16), "/test/List": listing})
        self.server.add_socket(path)
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{path}")

    def _wait(self, request: v1.Claim, call: RpcCall) -> v1.Claim:
        self.cores[request.uid] = os.sched_getaffinity(0)
        self.gate.wait(SECONDS)
        if request.uid == "fails":
            raise ZeroDivisionError("oops")
        return request

    def _list(self, request: v1.Claim, _: RpcCall) -> Iterator[v1.Claim]:
        self.cores[request.uid] = os.sched_getaffinity(0)
        yield request
        self.gate.wait(SECONDS)

    def begin(self, uid: str, method: str = "Wait") -> Any:
        """Begin a call, and return it once its method runs."""
        kind = self.channel.unary_stream if method == "List" else self.channel.unary_unary
        call: Any = kind(
            f"/test/{method}", request_serializer=v1.Claim.SerializeToString, response_deserializer=v1.Claim.FromString
        )
        asked = v1.Claim(uid=uid)
        begun = call(asked, timeout=SECONDS) if method == "List" else call.future(asked, timeout=SECONDS)
        until(lambda: uid in self.cores)
        return begun

    def is_free(self) -> bool:
        """Return whether no thread of the server is bound."""
        threads = (one for one in threading.enumerate() if one not in self._before and one.name == "rpc")
        return all(os.sched_getaffinity(one.native_id or 0) == ALL for one in threads)


@pytest.fixture
def served(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(shared_core, "CALLS", SharedCore(clock=lambda: 0.0))
    served = Served(short_path / "s")
    yield served
    served.gate.set()
    served.channel.close()
    assert served.server.stop(1.0).wait(SECONDS)


def test_calls_beside_each_other_share_a_core_and_every_thread_is_free_after_them(served: Served) -> None:
    calls = [served.begin(uid) for uid in ("first", "second", "fails", "cancelled", "last")]
    assert served.cores["first"] == served.cores["second"] == ALL
    assert len(served.cores["fails"]) == 1
    assert served.cores["fails"] == served.cores["cancelled"] == served.cores["last"]
    calls[3].cancel()
    served.gate.set()
    assert (calls[0].result(SECONDS).uid, calls[4].result(SECONDS).uid) == ("first", "last")
    assert calls[2].exception(SECONDS).code() is grpc.StatusCode.UNKNOWN
    until(served.is_free)


def test_a_stream_is_no_call_beside_others(served: Served) -> None:
    stream = served.begin("stream", "List")
    assert next(stream).uid == "stream"
    calls = [served.begin(uid) for uid in ("first", "second")]
    assert served.cores == {"stream": ALL, "first": ALL, "second": ALL}
    served.gate.set()
    assert [call.result(SECONDS).uid for call in calls] == ["first", "second"]
