"""One of two live instances holds the node's role."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node.kubelet import sockets
from dra_driver.node.kubelet.sockets import NodeRole
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until

HOLD = """
import sys, threading
from types import SimpleNamespace
from dra_driver.node.kubelet.sockets import NodeRole
NodeRole(sys.argv[1], SimpleNamespace(role_gained=lambda: print("gained", flush=True))).start()
threading.Event().wait()
"""


class Watcher:
    def __init__(self, path: Path) -> None:
        self.events: list[str] = []
        self.role = NodeRole(path, self)

    def role_gained(self) -> None:
        self.events.append("gained")

    def role_lost(self) -> None:
        self.events.append("lost")


def test_the_waiting_instance_gets_the_role_when_its_holder_stops(tmp_path: Path) -> None:
    older, newer = Watcher(tmp_path / "role.lock"), Watcher(tmp_path / "role.lock")
    older.role.start()
    until(lambda: older.events == ["gained"])
    newer.role.start()
    assert not newer.role.is_held
    older.role.stop()
    assert older.events == ["gained", "lost"]
    until(lambda: newer.events == ["gained"])
    assert newer.role.is_held
    assert not older.role.is_held
    newer.role.stop()


def test_a_waiting_instance_stops_without_the_role(tmp_path: Path) -> None:
    older, newer = Watcher(tmp_path / "role.lock"), Watcher(tmp_path / "role.lock")
    older.role.start()
    until(lambda: older.role.is_held)
    newer.role.start()
    newer.role.stop()
    assert newer.events == []
    older.role.stop()


def test_a_killed_holder_loses_the_role(tmp_path: Path) -> None:
    path = tmp_path / "role.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    )
    assert process.stdout.readline() == "gained\n"
    waiter = Watcher(path)
    waiter.role.start()
    process.kill()
    process.communicate(timeout=60)
    until(lambda: waiter.events == ["gained"])
    waiter.role.stop()


def test_a_role_is_released_even_if_its_listener_fails(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no API")

    role = NodeRole(tmp_path / "role.lock", SimpleNamespace(role_gained=fail, role_lost=fail))
    role.start()
    until(lambda: role.is_held)
    role.stop()
    assert not role.is_held


def test_what_keeps_the_roles_work_from_beginning_is_known_and_the_role_is_kept_until_the_end(
    tmp_path: Path,
) -> None:
    def fail() -> None:
        raise ValueError("any error")

    lost = threading.Event()
    role = NodeRole(tmp_path / "role.lock", SimpleNamespace(role_gained=fail, role_lost=lost.set))
    other = Watcher(tmp_path / "role.lock")
    role.start()
    until(lambda: role.failure is not None)
    assert str(role.failure) == "any error"
    assert (role.is_held, role.has_begun) == (True, False)
    other.role.start()
    assert not other.role.is_held
    role.stop()
    assert lost.is_set(), "what had begun is ended before another instance takes over"
    until(lambda: other.events == ["gained"])
    other.role.stop()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_role_for_which_no_thread_can_be_started_is_an_error(tmp_path: Path) -> None:
    watcher, before = Watcher(tmp_path / "role.lock"), open_descriptors()
    with no_thread_starts("role"), pytest.raises(NodeError, match="role can't be started"):
        watcher.role.start()
    assert open_descriptors() == before
    watcher.role.stop()
    watcher.role = NodeRole(tmp_path / "role.lock", watcher)
    watcher.role.start()
    until(lambda: watcher.role.has_begun)
    watcher.role.stop()


def test_until_the_role_was_asked_for_nobody_takes_the_instance_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose thread has not run yet would count as ready although nobody publishes."""
    gate, lock = threading.Event(), sockets._try_lock
    monkeypatch.setattr(sockets, "_try_lock", lambda fd: gate.wait(60) and lock(fd))
    listener = SimpleNamespace(role_gained=lambda: None, role_lost=lambda: None)
    role = NodeRole(tmp_path / "role", listener)
    role.start()
    assert not role.has_asked
    gate.set()
    until(lambda: role.has_asked)
    assert role.is_held
    role.stop()
