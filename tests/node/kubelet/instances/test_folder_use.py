"""Which instances use a plugin folder, and which removes it. Not covered: the agent process (tests/node/daemon)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dra_driver.node.kubelet.sockets import LOCK, FolderUse
from tests.support.waiting import until


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "plugins" / "gpu.nvidia.com"


def entered(folder):
    made = FolderUse(folder)
    made.enter()
    return made


def fill(folder):
    for name in ("ledger.db", "ledger.db-wal", "ledger.db.open", "locks", "role.lock"):
        (folder / name).touch()


def test_the_only_instance_removes_the_folder_when_it_leaves(folder):
    only = entered(folder)
    fill(folder)
    only.leave(is_needed=False)
    assert not folder.exists()
    assert folder.parent.exists()


def test_a_folder_that_is_still_needed_stays(folder):
    only = entered(folder)
    fill(folder)
    only.leave(is_needed=True)
    assert (folder / "ledger.db").exists()


def test_a_file_that_is_not_ours_stays_with_its_folder(folder):
    only = entered(folder)
    fill(folder)
    (folder / "ledger.db.corrupt-20260101T000000Z").touch()
    only.leave(is_needed=False)
    assert [path.name for path in folder.iterdir()] == ["ledger.db.corrupt-20260101T000000Z"]


@pytest.mark.parametrize("state", ["", '{"bootId": "boot-1", "gpus": {}}'])
def test_the_state_of_simulated_gpus_stays_unless_it_is_empty(folder, state):
    only = entered(folder)
    (folder / "simulated-mig.json").write_text(state)
    only.leave(is_needed=False)
    assert folder.exists() == bool(state)


def test_the_first_of_two_instances_to_leave_removes_nothing(folder):
    old, new = entered(folder), entered(folder)
    fill(folder)
    old.leave(is_needed=False)
    assert (folder / "ledger.db").exists()
    new.leave(is_needed=False)
    assert not folder.exists()


def test_nothing_is_removed_while_an_instance_without_a_lock_listens_there(folder, tmp_path, monkeypatch):
    import socket

    only = entered(folder)
    fill(folder)
    monkeypatch.chdir(folder)  # a socket's name is limited
    with socket.socket(socket.AF_UNIX) as older:
        older.bind("dra-older.sock")
        older.listen()
        only.leave(is_needed=False)
    assert (folder / "ledger.db").exists()


def test_an_instance_that_enters_while_others_leave_always_has_a_folder_with_a_lock(folder):
    stop, faults = threading.Event(), []

    def live():
        while not stop.is_set():
            try:
                stay = entered(folder)
                if not (folder / LOCK).exists():
                    faults.append("no lock")
                stay.leave(is_needed=False)
            except Exception as error:
                faults.append(error)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    rounds = iter(range(200))
    until(lambda: faults or next(rounds, None) is None, what="200 rounds")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not faults
    assert not Path(folder).exists()
