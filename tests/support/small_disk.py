"""A disk that is full, or soon will be."""

import subprocess
from pathlib import Path

from tests.support.plugin.parts import is_root


def mount(*arguments: str) -> bool:
    return is_root() and subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


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
