"""Calls that run at the same time share one core: real threads, and what the kernel says of them."""

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
    """A thread that is within the shared core from `begin` to `end`, and lives until `close`."""

    def __init__(self, core: SharedCore) -> None:
        self._core = core
        self._may_begin, self._may_end, self._may_close = (threading.Event() for _ in range(3))
        self._has_begun, self._has_ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
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
    made = [Worker(core) for _ in range(4)]
    with ExitStack() as stack:
        for worker in made:
            stack.callback(worker.close)
        yield made


def test_a_call_alone_runs_on_any_core_and_calls_beside_each_other_on_one(workers: list[Worker]) -> None:
    first, second, third, idle = workers
    first.begin()
    assert first.cores == ALL
    second.begin()
    third.begin()
    assert len(second.cores) == 1
    assert first.cores == second.cores == third.cores
    assert idle.cores == ALL
    second.end()
    assert second.cores == ALL
    assert first.cores == third.cores != ALL
    third.end()
    assert first.cores == ALL, "it is alone again"
    first.end()
    assert [worker.cores for worker in workers] == [ALL] * 4


def test_a_thread_that_was_started_within_a_call_is_free_after_the_calls() -> None:
    core, gate = SharedCore(), threading.Event()
    worker = Worker(core).begin()
    with core:
        child = threading.Thread(target=gate.wait, args=(SECONDS,), daemon=True)
        child.start()
        assert os.sched_getaffinity(child.native_id or 0) == os.sched_getaffinity(0) != ALL
    assert os.sched_getaffinity(child.native_id or 0) == ALL
    gate.set()
    worker.close()


def test_after_its_turn_another_core_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    now, where = [0.0], iter(sorted(ALL)[:2])
    monkeypatch.setattr(shared_core, "present_core", lambda: next(where))
    core = SharedCore(clock=lambda: now[0])
    with ExitStack() as stack:
        first, second, third, fourth = made = [Worker(core) for _ in range(4)]
        for worker in made:
            stack.callback(worker.close)
        for worker in (first, second, third):
            worker.begin()
        assert [worker.cores for worker in made] == [{min(ALL)}] * 3 + [ALL]
        now[0] += TURN_SECONDS
        fourth.begin()
        assert [worker.cores for worker in made] == [{sorted(ALL)[1]}] * 4


def test_a_process_that_is_bound_to_some_cores_stays_on_them(workers: list[Worker]) -> None:
    some = set(sorted(ALL)[: max(2, len(ALL) - 1)])
    first, second, *_ = workers
    for worker in workers:
        os.sched_setaffinity(worker._thread.native_id or 0, some)
    first.begin()
    second.begin()
    assert first.cores == second.cores < some
    for worker in (second, first):
        worker.end()
        assert worker.cores == some


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
    first, second, third, _ = workers
    first.begin()
    second.begin()
    before = len(asked)
    third.begin()
    assert (len(asked) > before) == is_tried_again
    for worker in (first, second, third):
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
    calls = [served.begin(uid) for uid in ("first", "fails", "cancelled", "last")]
    assert served.cores["first"] == ALL
    assert len(served.cores["fails"]) == 1
    assert served.cores["cancelled"] == served.cores["last"] != ALL
    calls[2].cancel()
    served.gate.set()
    assert (calls[0].result(SECONDS).uid, calls[3].result(SECONDS).uid) == ("first", "last")
    assert calls[1].exception(SECONDS).code() is grpc.StatusCode.UNKNOWN
    until(served.is_free)


def test_a_stream_is_no_call_beside_others(served: Served) -> None:
    stream = served.begin("stream", "List")
    assert next(stream).uid == "stream"
    call = served.begin("alone")
    assert served.cores == {"stream": ALL, "alone": ALL}
    served.gate.set()
    assert call.result(SECONDS).uid == "alone"
