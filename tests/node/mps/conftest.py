from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.node.mps import processes
from tests.support.mps.fake_mps import FakeMps
from tests.support.mps.parts import Rig, Supervisor, short_folder


@pytest.fixture(autouse=True)
def _commands_without_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands start without a copy of this process, which has all tests in memory and is twenty times as large.

    Only code that runs between fork and exec needs the copy: it makes a command end with its parent. No test kills this
    process; the supervisors and callers that tests kill (`Supervisor`, `crash_points`) are processes of their own.
    """
    monkeypatch.setattr(processes, "kill_with_parent", lambda: None)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def disk_folder() -> Iterator[Path]:
    """Yield a folder that is not below /dev/shm: daemons of real hardware see another /dev/shm, wherever TMPDIR is."""
    with short_folder("/tmp") as path:
        yield path


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    rig.supervisor.begin()
    yield rig
    rig.supervisor.close()


@pytest.fixture
def fake(rig: Rig) -> FakeMps:
    assert rig.fake
    return rig.fake


@pytest.fixture
def supervisor(folder: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(folder, "--hardware", "simulated:any")
    supervisor.begin()
    yield supervisor
    supervisor.close()
