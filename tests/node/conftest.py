"""A whole plugin on real files, without sockets."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.plugin.lock_order import lock_order  # noqa: F401 - a test fails if locks are taken out of order
from tests.support.plugin.parts import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets' paths fit into 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    yield folder
    shutil.rmtree(folder)
