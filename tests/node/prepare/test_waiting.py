"""Calls that wait: what wakes them, what they ask meanwhile, and how many threads they take."""

import threading
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node.kubelet.server import PREPARES, PluginServer
from dra_driver.node.prepare import preparer
from dra_driver.node.prepare.release_watch import CheckTimer, InterruptiblePause
from tests.node.support.kubelet import FakeKubelet, claim
from tests.support.plugin.parts import DRIVER, Rig, in_thread, inventory
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


def test_one_thread_looks_for_all_that_sleep_and_ends_with_them() -> None:
    version, others = [1], set(threading.enumerate())  # a test before this one may have left a thread that ends soon
    waiting = InterruptiblePause(SimpleNamespace(version=lambda: version[0]))
    sleepers = [in_thread(waiting.await_change, 30.0, waiting.seen)[0] for _ in range(20)]
    until(lambda: waiting._sleepers == 20)
    assert [t.name for t in set(threading.enumerate()) - others].count("waiting") == 1
    version[0] = 2
    for thread in sleepers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in sleepers)
    until(lambda: "waiting" not in [t.name for t in set(threading.enumerate()) - others])


def test_a_call_that_comes_after_the_change_does_not_sleep() -> None:
    waiting = InterruptiblePause(SimpleNamespace(version=lambda: 1))
    seen = waiting.seen
    waiting.wake()
    thread, _ = in_thread(waiting.await_change, 30.0, seen)
    thread.join(60)
    assert not thread.is_alive()


def test_a_pause_is_cut_short_by_the_end_of_the_agent_alone() -> None:
    waiting = InterruptiblePause(SimpleNamespace(version=lambda: 1))
    thread, _ = in_thread(waiting.pause, 30.0)
    waiting.wake()
    thread.join(0.2)
    assert thread.is_alive()
    waiting.close()
    thread.join(60)
    assert not thread.is_alive()


def test_one_of_many_calls_asks_about_a_holder() -> None:
    looks = CheckTimer(30.0)
    assert [looks.is_due("a"), looks.is_due("a"), looks.is_due("b")] == [True, False, True]


def test_calls_that_wait_for_one_device_share_the_requests_about_its_holder(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(preparer, "HOLDER_SECONDS", 600.0)  # all of them sleep at once, however long they need
    rig.allocate("holder", "gpu-0")
    rig.prepare("holder")
    calls = [in_thread(rig.prepare, rig.allocate(f"w{number}", "gpu-0"), 600.0)[0] for number in range(30)]
    until(lambda: rig.preparer._wait._pause._sleepers == 30)
    until(lambda: rig.preparer._wait._checks.is_due("holder"))
    asked = rig.api.requests["get"]
    assert asked < 31 + 10, "each its own claim, and a few times the holder's"
    rig.preparer.close()
    for call in calls:
        call.join(60)


def test_claims_of_many_calls_share_the_threads_of_their_kind(short_path) -> None:
    rig, others = Rig(short_path), set(threading.enumerate())
    rig.inventory = inventory(1)
    rig.allocate("holder", "gpu-0")
    rig.prepare("holder")
    kubelet = FakeKubelet(short_path / "registry")
    server = PluginServer(
        driver=DRIVER,
        registrar_dir=short_path / "registry",
        plugins_dir=short_path / "plugins",
        pod_uid="",
        preparer=rig.preparer,
    )
    server.start()
    try:
        kubelet.register()
        uids = [[rig.allocate(f"u{call}-{n}", "gpu-0") for n in range(50)] for call in range(4)]
        calls = [in_thread(kubelet.prepare, *map(claim, each))[0] for each in uids]
        until(lambda: rig.preparer._wait._pause._sleepers == PREPARES)
        assert sum(t.name.startswith("prepare_") for t in set(threading.enumerate()) - others) == PREPARES
        assert kubelet.unprepare(claim("holder"))["holder"].error == ""
    finally:
        server.stop(1.0)
    for call in calls:
        call.join(60)
    rig.close()


def test_a_call_that_can_t_wait_without_a_thread_fails_and_the_next_one_waits() -> None:
    version = [1]
    waiting = InterruptiblePause(SimpleNamespace(version=lambda: version[0]))
    with no_thread_starts("waiting"), pytest.raises(NodeError, match="waiting can't be started"):
        waiting.await_change(30.0, waiting.seen)
    assert waiting._sleepers == 0
    thread, _ = in_thread(waiting.await_change, 600.0, waiting.seen)
    until(lambda: waiting._sleepers == 1)
    version[0] = 2
    thread.join(60)
    assert not thread.is_alive(), "a thread looks for changes again"
