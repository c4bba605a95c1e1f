"""Stamps: how to notice, without reading it, that a file was replaced or rewritten.

A file that is renamed into place has another inode, one that is mounted over another has another device, one that is
rewritten has another time and, if the file system's clock is too coarse to show that, usually another size. The mode
and the owner do not count: the content stays the same.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Stamp(NamedTuple):
    """What differs between one file and the next at the same path."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def stamp_of(path: str | os.PathLike[str], *, follows_links: bool = True) -> Stamp | None:
    """Return the stamp of what is at `path`, or of the link itself; None where nothing can be seen."""
    try:
        return stamp_of_status(os.stat(path, follow_symlinks=follows_links))  # noqa: PTH116 - called for many paths
    except OSError:
        return None


def stamp_of_status(status: os.stat_result) -> Stamp:
    """Return the stamp of a file that was looked at already."""
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
