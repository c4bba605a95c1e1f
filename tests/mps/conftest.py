from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.mps import children
from tests.support.mps.fake_mps import FakeMps
from tests.support.mps.parts import Rig, Supervisor, short_folder


@pytest.fixture(autouse=True)
def _commands_without_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands start without a copy of this process, which holds all tests and is twenty times a supervisor.

    Only what runs between fork and exec needs the copy: the command's end with its parent. No test ends this process;
    the supervisors and the callers that tests do kill (`Supervisor`, `kill_points`) are processes of their own.
    """
    monkeypatch.setattr(children, "end_with_parent", lambda: None)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    it = Rig(folder)
    it.supervisor.begin()
    yield it
    it.supervisor.close()


@pytest.fixture
def fake(rig: Rig) -> FakeMps:
    assert rig.fake
    return rig.fake


@pytest.fixture
def supervisor(folder: Path) -> Iterator[Supervisor]:
    it = Supervisor(folder, "--hardware", "simulated:any")
    it.begin()
    yield it
    it.close()
