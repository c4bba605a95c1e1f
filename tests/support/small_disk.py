"""A disk that is full, or soon will be."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.plugin.parts import is_root


def mount(*arguments: str) -> bool:
    return is_root() and subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


@contextmanager
def full_soon(folder: Path) -> Iterator[Path]:
    """Make a file system of 384 KiB. Skips the test where that is not allowed."""
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=384k", "tmpfs", str(folder)):
        pytest.skip("needs root and the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space that is left, to the last byte."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return ballast
