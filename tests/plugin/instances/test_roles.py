"""One of two live instances holds the node's role."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from dra_driver.plugin.instances.roles import NodeRole
from tests.support.waiting import until

HOLD = """
import sys, threading
from types import SimpleNamespace
from dra_driver.plugin.instances.roles import NodeRole
NodeRole(sys.argv[1], SimpleNamespace(role_gained=lambda: print("gained", flush=True))).start()
threading.Event().wait()
"""


class Watcher:
    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.role = NodeRole(path, self)

    def role_gained(self) -> None:
        self.said.append("gained")

    def role_lost(self) -> None:
        self.said.append("lost")


def test_the_role_changes_hands_when_its_holder_lets_go(tmp_path: Path) -> None:
    older, newer = Watcher(tmp_path / "role.lock"), Watcher(tmp_path / "role.lock")
    older.role.start()
    until(lambda: older.said == ["gained"])
    newer.role.start()
    assert not newer.role.is_held
    older.role.stop()
    assert older.said == ["gained", "lost"]
    until(lambda: newer.said == ["gained"])
    assert newer.role.is_held
    assert not older.role.is_held
    newer.role.stop()


def test_a_waiting_instance_stops_without_the_role(tmp_path: Path) -> None:
    older, newer = Watcher(tmp_path / "role.lock"), Watcher(tmp_path / "role.lock")
    older.role.start()
    until(lambda: older.role.is_held)
    newer.role.start()
    newer.role.stop()
    assert newer.said == []
    older.role.stop()


def test_a_killed_holder_loses_the_role(tmp_path: Path) -> None:
    path = tmp_path / "role.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert process.stdout.readline() == "gained\n"
    waiter = Watcher(path)
    waiter.role.start()
    process.kill()
    process.communicate(timeout=60)
    until(lambda: waiter.said == ["gained"])
    waiter.role.stop()


def test_a_role_that_fails_to_start_is_still_given_up(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no API")

    role = NodeRole(tmp_path / "role.lock", SimpleNamespace(role_gained=fail, role_lost=fail))
    role.start()
    until(lambda: role.is_held)
    role.stop()
    assert not role.is_held
