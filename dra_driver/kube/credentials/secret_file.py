"""A secret as a file in memory, for libraries and commands that accept only the path of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class SecretFile(NamedTuple):
    """A file that exists only as long as some process has it open: its path for each of them, and its descriptor."""

    path: str
    descriptor: int


@contextmanager
def secret_file(content: bytes) -> Iterator[SecretFile]:
    """Keep content in a file until the block ends. It is never on a disk."""
    descriptor = os.memfd_create("secret", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield SecretFile(f"/proc/self/fd/{descriptor}", descriptor)
    finally:
        os.close(descriptor)
