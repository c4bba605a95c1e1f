"""What strangers and clients do: nothing they control leads the supervisor to a process, a file or a wait of theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.model.errors import DriverError
from dra_driver.mps.folder import key_of
from tests.mps.parts import SETTINGS, Supervisor, cgroup_of, cgroup_tree, device, end_all, stranger

PID_FILE = "nvidia-cuda-mps-control.pid"


@pytest.fixture
def cgroup(folder: Path) -> Iterator[Path]:
    tree = cgroup_tree()
    if tree is None:
        pytest.skip("no cgroup v2 tree can be written here, or we are not root")
    path = tree / folder.name
    yield path
    end_all(folder)
    for one in [*path.glob("*/"), path]:
        with suppress(OSError):
            one.rmdir()


@pytest.fixture
def kept(folder: Path, cgroup: Path) -> Iterator[Supervisor]:
    it = Supervisor(folder, "--mps-cgroup", str(cgroup), hardware=["--hardware", "simulated:any"])
    it.begin()
    yield it
    it.close()


def folder_of(supervisor: Supervisor, number: int = 0) -> Path:
    return supervisor.data / "mps/d" / key_of(device(number).uuid)


def test_a_stranger_who_imitates_a_daemon_is_neither_moved_nor_ended(kept: Supervisor):
    with stranger(DRA_DRIVER_MPS=str(folder_of(kept))) as process:
        before = cgroup_of(process.pid)
        began = time.monotonic()
        with suppress(DriverError):
            kept.client.start(device(), SETTINGS, deadline_s=8)
        print("start took", time.monotonic() - began)
        assert cgroup_of(process.pid) == before
        kept.client.stop(device(), deadline_s=10)
        assert process.poll() is None


def test_a_pid_file_that_names_an_imitator_moves_nobody(kept: Supervisor):
    kept.client.start(device(), SETTINGS, deadline_s=10)
    at = folder_of(kept)
    with stranger(DRA_DRIVER_MPS=str(at)) as process:
        before = cgroup_of(process.pid)
        daemon = kept.daemon()
        (at / "pipe" / PID_FILE).write_text(f"{process.pid}\n")
        os.kill(daemon, 9)
        began = time.monotonic()
        with suppress(DriverError):
            kept.client.start(device(), SETTINGS, deadline_s=8)
        print("start took", time.monotonic() - began)
        assert cgroup_of(process.pid) == before
        kept.client.stop(device(), deadline_s=10)
        assert process.poll() is None


def test_a_fifo_at_the_pid_file_keeps_nobody_waiting(kept: Supervisor):
    kept.client.start(device(), SETTINGS, deadline_s=10)
    at = folder_of(kept)
    (at / "pipe" / PID_FILE).unlink()
    os.mkfifo(at / "pipe" / PID_FILE)
    with stranger(DRA_DRIVER_MPS=str(at)):
        os.kill(kept.daemon(), 9)
        kept.client.stop(device(), deadline_s=10)
        kept.client.start(device(), SETTINGS, deadline_s=10)
        kept.client.stop(device(), deadline_s=10)
        assert kept.client.running(deadline_s=5) == ()
