"""More calls than threads, calls that were given up, peers that do not read, and threads that can't be started."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.base.errors import NodeError
from dra_driver.base.machine import Deadline
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node.kubelet import server
from dra_driver.node.kubelet.methods import VERSIONS, CallPool
from dra_driver.node.kubelet.server import PluginServer
from dra_driver.node.ledger.locks import claim_lock
from dra_driver.node.prepare import preparer
from tests.node.support.kubelet import FakeKubelet, claim
from tests.support.plugin.parts import DRIVER, Rig, inventory
from tests.support.waiting import unhindered, until

WAITING = 200
SERVICE = VERSIONS["v1.DRAPlugin"]


class Served:
    """A plugin whose Prepares wait for a device node, and one channel of a kubelet."""

    def __init__(self, root: Path) -> None:
        self.rig = Rig(root)
        self.rig.inventory = inventory(WAITING)
        self.rig.hardware.missing = set(range(WAITING))
        folders: dict[str, Any] = {"registrar_dir": root / "registry", "plugins_dir": root / "plugins"}
        self.server = PluginServer(driver=DRIVER, pod_uid="", preparer=self.rig.preparer, **folders)
        self.server.start()
        self.kubelet = FakeKubelet(root / "registry")
        self.endpoint = self.kubelet.register().endpoint
        self.channel = grpc.insecure_channel(f"unix:{self.endpoint}")

    def prepare_later(self, uid: str, seconds: float = 45.0) -> Any:
        """Send a Prepare, and return its future."""
        return self._later("NodePrepareResources", v1.NodePrepareResourcesResponse, uid, seconds)

    def unprepare_later(self, uid: str, seconds: float = 45.0) -> Any:
        return self._later("NodeUnprepareResources", v1.NodeUnprepareResourcesResponse, uid, seconds)

    def _later(self, method: str, answer: Any, uid: str, seconds: float) -> Any:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=v1.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call.future(v1.NodePrepareResourcesRequest(claims=[claim(uid)]), timeout=seconds)

    def wait_with_all_threads(self) -> list[Any]:
        """Have more Prepares wait than there are threads for."""
        uids = [self.rig.allocate(f"u{number}", f"gpu-{number}") for number in range(WAITING)]
        calls = [self.prepare_later(uid, 600) for uid in uids]
        until(lambda: self.rig.api.requests["get"] >= server.PREPARES)
        return calls


@pytest.fixture
def served(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(preparer, "NODE_SECONDS", 600.0)
    served = Served(short_path)
    yield served
    served.rig.hardware.missing = set()
    served.channel.close()
    served.server.stop(1.0)
    for pool in served.server._pools:
        pool.shutdown(wait=True)  # calls that were cut off may still write into the folder
    served.rig.close()


def test_an_unprepare_is_answered_at_once_beside_two_hundred_waiting_prepares(served: Served) -> None:
    served.wait_with_all_threads()
    assert served.kubelet.unprepare(claim("never"), seconds=20)["never"].error == ""
    assert served.rig.api.requests["get"] < WAITING, "the others still wait for their turn"


def test_a_call_whose_turn_comes_after_the_kubelet_gave_up_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = served.rig.allocate("late", "gpu-199")
    calls = served.wait_with_all_threads()
    call = served.prepare_later(late, 0.2)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    served.rig.hardware.missing = set()
    for number, waiting in enumerate(calls[:199]):
        assert waiting.result(60).claims[f"u{number}"].error == ""
    unhindered(lambda: served.server.stop(5.0))
    assert late not in served.rig.states()


@pytest.mark.parametrize("method", ["prepare", "unprepare"])
def test_a_call_that_is_given_up_while_it_waits_for_a_lock_changes_nothing(
    served: Served, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.rig.hardware.missing = set()
    uid = served.rig.allocate("u1", "gpu-0")
    if method == "unprepare":
        assert served.kubelet.prepare(claim(uid))[uid].error == ""
    before = served.rig.states()
    arrived, ended, real = threading.Event(), threading.Event(), getattr(served.rig.preparer, method)

    def arrive(*args: Any) -> Any:
        if uid not in args:
            return real(*args)
        arrived.set()
        try:
            return real(*args)
        finally:
            ended.set()

    with monkeypatch.context() as context, served.rig.locks.hold([claim_lock(uid)], Deadline.after(60)):
        context.setattr(served.rig.preparer, method, arrive)
        call = served.prepare_later(uid, 600) if method == "prepare" else served.unprepare_later(uid, 600)
        assert arrived.wait(60)
        call.cancel()
        # On the same connection, so that the plugin knows of the end of the first call when it answers this one.
        assert served.prepare_later("../bad", 600).result(60).claims["../bad"].error
    assert ended.wait(60)
    assert served.rig.states() == before


def test_the_plugin_ends_two_seconds_after_the_drain_beside_waiting_prepares(served: Served) -> None:
    calls = served.wait_with_all_threads()
    started = time.monotonic()
    unhindered(lambda: served.server.stop(3.0))
    assert time.monotonic() - started < 60
    served.rig.hardware.missing = set()
    for call in calls:
        call.exception(60)
    assert all(call.done() for call in calls)


def test_calls_of_each_kind_are_answered_by_threads_of_their_own(served: Served) -> None:
    """It is what keeps an Unprepare from waiting for Prepares, and an experimental feature of grpcio."""
    names: list[str] = []
    served.rig.hardware.missing = set()
    plan = served.rig.preparer.prepare

    def prepare(*args: Any) -> Any:
        names.append(threading.current_thread().name)
        return plan(*args)

    served.rig.preparer.prepare = prepare  # type: ignore[method-assign]
    uid = served.rig.allocate("u1", "gpu-0")
    assert served.kubelet.prepare(claim(uid))[uid].error == ""
    assert names[0].startswith("prepare_")


def test_without_further_threads_a_call_waits_for_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CallPool(4, "calls")
    gate, begun = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return gate.wait(60)

    pool.submit(wait)
    assert begun.wait(60)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    answered = threading.Event()
    pool.submit(answered.set)
    gate.set()
    assert answered.wait(60)
    pool.shutdown()


def test_a_pool_without_a_first_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NodeError, match="calls_0 can't be started"):
        CallPool(4, "calls")


# -- a peer that does not read: HTTP/2 by hand, because no client would do that ----------------------------------------


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """Return a header field as HPACK's literal without indexing and without compression."""
    return b"\0" + bytes([len(name)]) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    return bytes([size]) if size < 127 else bytes([127, size - 127])


def _request(stream: int, uid: str) -> bytes:
    message = v1.NodePrepareResourcesRequest(claims=[claim(uid)]).SerializeToString()
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/NodePrepareResources".encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    head = _frame(1, 4, stream, b"".join(_field(name, value) for name, value in fields))
    return head + _frame(0, 1, stream, b"\0" + struct.pack(">I", len(message)) + message)


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100_000,
        PREFACE + b"\xff" * 100_000,
        PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, b"\xff" * 1000),
        PREFACE + _frame(4, 0, 0, b"") + _frame(0, 1, 7, b"no such stream"),
        PREFACE + _frame(4, 0, 0, b"") + _frame(6, 0, 0, b"pingping") * 5000,
    ],
    ids=["another protocol", "zeros", "no frames", "bad header fields", "data without a stream", "pings"],
)
def test_who_breaks_the_rules_of_the_protocol_disturbs_nobody(served: Served, text: bytes) -> None:
    served.rig.hardware.missing = set()
    uid = served.rig.allocate("u1", "gpu-0")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(served.endpoint)
        with suppress(OSError):  # the plugin may close the connection meanwhile
            peer.sendall(text)
        assert served.kubelet.prepare(claim(uid), seconds=30)[uid].error == ""
        assert served.kubelet.unprepare(claim(uid), seconds=30)[uid].error == ""


def test_a_peer_that_does_not_read_delays_nobody_and_is_gone_when_it_closes(served: Served) -> None:
    served.rig.hardware.missing = set()
    uid = served.rig.allocate("u1", "gpu-0")
    settings = struct.pack(">HI", 4, 0)  # the initial window of a stream: no byte
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(served.endpoint)
        peer.sendall(PREFACE + _frame(4, 0, 0, settings))
        for number in range(500):
            peer.sendall(_request(2 * number + 1, "u1"))
        with ThreadPoolExecutor(4) as callers:
            answers = list(callers.map(lambda _: served.kubelet.prepare(claim(uid), seconds=30), range(8)))
        assert [answer[uid].error for answer in answers] == [""] * 8
    assert served.kubelet.unprepare(claim(uid))[uid].error == ""
