"""A whole plugin on real files, without sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.parts import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
