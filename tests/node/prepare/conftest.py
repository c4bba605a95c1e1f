"""What the tests of Prepare have in common."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.small_disk import full_soon


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 384 KiB."""
    with full_soon(tmp_path / "small") as folder:
        yield folder
