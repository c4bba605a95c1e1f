"""What the tests of Prepare have in common."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.small_disk import mount


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 384 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=384k", "tmpfs", str(folder)):
        pytest.skip("needs root and the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
