"""Stamps: how to notice that a file was replaced or rewritten, without reading it.

A file that was renamed into place has another inode, one that was mounted over another has another device, and one that
was rewritten has another time or, if the file system's clock is too coarse to show that, usually another size. Mode and
owner do not count, because they do not change the content.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Stamp(NamedTuple):
    """The properties in which a file differs from the next one at the same path."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def stamp_of(path: str | os.PathLike[str], *, follows_links: bool = True) -> Stamp | None:
    """Return the stamp of the file at `path`, or of the link itself; None if there is none or it can't be seen."""
    try:
        return stamp_of_status(os.stat(path, follow_symlinks=follows_links))  # noqa: PTH116 - called for many paths
    except OSError:
        return None


def stamp_of_status(status: os.stat_result) -> Stamp:
    """Return the stamp of a file whose status is known."""
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
