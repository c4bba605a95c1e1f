from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mps.fake_mps import FakeMps
from tests.support.mps.parts import Rig, Supervisor, short_folder


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
