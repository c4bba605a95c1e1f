"""Locks by name, between threads and between processes."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError, PrepareError
from dra_driver.base.machine import Deadline
from dra_driver.node.ledger.locks import NodeLocks
from tests.support.plugin.parts import in_thread
from tests.support.waiting import until

HOLD = """
import sys
from dra_driver.base.machine import Deadline
from dra_driver.node.ledger.locks import NodeLocks
with NodeLocks(sys.argv[1]).hold(sys.argv[2:], Deadline.after(1)):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def holder(path: Path, *names: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_by_one_thread_at_a_time(path: Path) -> None:
    locks, inside, most = NodeLocks(path), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with locks.hold(["a", "b"], Deadline.after(10)):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert locks._locals == {}


def test_other_names_are_free(path: Path) -> None:
    locks = NodeLocks(path)
    with locks.hold(["a"], Deadline.after(1)):
        thread, outcome = in_thread(lambda: locks.hold(["b"], Deadline.after(60)).__enter__())
        thread.join(60)
        assert outcome == [None]


def test_names_taken_in_different_orders_do_not_deadlock(path: Path) -> None:
    locks = NodeLocks(path)

    def work(names: list[str]) -> bool:
        for _ in range(100):
            with locks.hold(names, Deadline.after(10)):
                pass
        return True

    runs = [in_thread(work, names) for names in (["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"])]
    for thread, outcome in runs:
        thread.join(60)
        assert outcome == [True]


def test_a_lock_that_is_not_free_in_time_is_named(path: Path) -> None:
    locks = NodeLocks(path)
    with locks.hold(["device/gpu-0"], Deadline.after(1)):
        thread, outcome = in_thread(lambda: locks.hold(["device/gpu-0"], Deadline.after(0.05)).__enter__())
        thread.join(60)
    assert isinstance(outcome[0], PrepareError)
    assert "device/gpu-0" in str(outcome[0])
    with locks.hold(["device/gpu-0"], Deadline.after(0)):
        pass


def test_another_process_keeps_its_names_and_no_others(path: Path) -> None:
    process, locks = holder(path, "a"), NodeLocks(path)
    with pytest.raises(PrepareError), locks.hold(["a"], Deadline.after(0.05)):
        pass
    with locks.hold(["b"], Deadline.after(0)):
        pass
    process.communicate("go\n", timeout=60)
    with locks.hold(["a"], Deadline.after(5)):
        pass


def test_the_locks_of_a_killed_process_are_free(path: Path) -> None:
    process, locks = holder(path, "a"), NodeLocks(path)
    process.kill()
    process.communicate(timeout=60)
    with locks.hold(["a"], Deadline.after(0)):
        pass
    locks.close()


def test_a_lock_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError):
        NodeLocks(tmp_path / "file" / "locks")


def test_a_call_that_goes_first_gets_a_lock_before_all_that_waited_longer(path: Path) -> None:
    locks, order = NodeLocks(path), []

    def take(name: str, deadline: Deadline) -> None:
        with locks.hold(["a"], deadline):
            order.append(name)

    def local() -> tuple[int, int]:
        found = locks._locals["a"]
        return (found.users, found.first) if found else (1, 0)

    with locks.hold(["a"], Deadline.after(10)):
        waiting = [in_thread(take, f"prepare {n}", Deadline.after(10))[0] for n in range(8)]
        until(lambda: local() == (9, 0))
        waiting.append(in_thread(take, "unprepare", Deadline.of_call(10.0, goes_first=True).sooner(9))[0])
        until(lambda: local() == (10, 1))
    for thread in waiting:
        thread.join(60)
    assert order[0] == "unprepare"
    assert len(order) == 9


def test_a_call_that_goes_first_still_ends_at_its_deadline(path: Path) -> None:
    locks = NodeLocks(path)
    with locks.hold(["a"], Deadline.after(10)):
        thread, outcome = in_thread(lambda: locks.hold(["a"], Deadline.of_call(0.1, goes_first=True)).__enter__())
        thread.join(60)
    assert isinstance(outcome[0], PrepareError)
    assert not locks._locals
