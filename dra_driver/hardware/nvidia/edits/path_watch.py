"""PathWatch: asks the kernel once whether anything happened at many paths, instead of looking at each of them.

In: absolute paths, each a file, a folder, a link, or nothing yet. Out: whether something may have changed there since
the last question. Folders above a path are watched too, because they may be renamed, and so is the list of mounts,
because what is mounted over a folder changes nothing in it.
Source: inotify(7); proc_pid_mountinfo(5), which can be polled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterable, Iterator

_MODIFY, _ATTRIB, _DELETE_SELF, _MOVE_SELF = 0x2, 0x4, 0x400, 0x800
_ENTRIES = 0x40 | 0x80 | 0x100 | 0x200  # one was moved away, moved here, made, removed
_SELF = _DELETE_SELF | _MOVE_SELF
_LOST = 0x2000 | 0x4000 | 0x8000 | _SELF  # unmounted, overflow, no longer watched
_NOT_FOLLOWED, _ADDED_TO_MASK = 0x02000000, 0x20000000
_EVENT = struct.Struct("iIII")  # watch, what happened, cookie, length of the name
_PIECE_BYTES = 64 * 1024
_MOUNTS = "/proc/self/mountinfo"

_Names = set[bytes] | None  # the entries of a folder that count; None for all of them, and for anything but a folder
_Inode = tuple[int, int] | None  # the device and number of what is at a path; None where there is nothing


class PathWatch:
    """A watch over `paths`. Any thread may ask whether it is quiet; one at a time may call the other methods."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Begin to watch. Raises: OSError where the kernel allows no further watch, or has none."""
        self.is_whole = True  # whether all paths are still watched
        self._fds: list[int] = []
        self._poller = select.epoll()
        self._polling = threading.Lock()
        self._has_mounts_changed = False  # kept here, because the kernel reports a change only to the first poll
        self._names: dict[int, _Names] = {}
        self._inodes: dict[tuple[str, bool], _Inode] = {}  # by watched path and whether a link there is followed
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._events = self._registered(library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), select.EPOLLIN)
            self._mounts = self._registered(os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC), select.EPOLLPRI)
            for path, names in _watched(paths).items():
                self._add(library, path, names)
        except AttributeError as error:  # another C library
            self.close()
            raise OSError(f"no inotify: {error}") from error
        except OSError:
            self.close()
            raise

    def is_quiet(self) -> bool:
        """Return whether nothing at all has happened since the watch began, or since `has_seen` was last called."""
        try:
            return not self._polled_fds() and not self._has_mounts_changed
        except ValueError:  # it was closed
            return False

    def has_seen(self) -> bool:
        """Return whether something relevant has happened, and forget it.

        The start of each pod changes the node's list of mounts, but hardly ever at a watched path. A new watch for each
        such change would cost milliseconds, so the old one is kept while every path still leads to the watched inode.
        """
        self._polled_fds()
        with self._polling:
            counts, self._has_mounts_changed = self._has_mounts_changed, False
        if counts:  # the flag was cleared before the paths are looked at, so a mount from now on counts the next time
            self.is_whole = self.is_whole and all(_inode(*place) == was for place, was in self._inodes.items())
        counts = counts or not self.is_whole
        with contextlib.suppress(BlockingIOError):
            while True:
                for watch, what, name in _what_happened(os.read(self._events, _PIECE_BYTES)):
                    names = self._names.get(watch)
                    self.is_whole = self.is_whole and not what & _LOST
                    counts = counts or bool(what & _LOST) or names is None or name in names
        return counts

    def close(self) -> None:
        """Stop watching."""
        self._poller.close()
        while self._fds:
            os.close(self._fds.pop())

    def _polled_fds(self) -> list[tuple[int, int]]:
        """Return what there is to read, and remember whether mounts have changed. Raises: ValueError once closed."""
        with self._polling:  # so that no other thread finds the watch quiet before the change is remembered
            found = self._poller.poll(0, 2)
            if found and any(fd == self._mounts for fd, _ in found):
                self._has_mounts_changed = True
            return found

    def _registered(self, fd: int, events: int) -> int:
        if fd < 0:
            raise OSError(ctypes.get_errno(), "no inotify")
        self._fds.append(fd)
        self._poller.register(fd, events)
        return fd

    def _add(self, library: ctypes.CDLL, path: str, names: _Names) -> None:
        """Watch one path, unless there is nothing: the folder above it is watched. Raises: OSError."""
        what = _ENTRIES | _SELF if names is not None else _ENTRIES | _SELF | _MODIFY | _ATTRIB | _NOT_FOLLOWED
        place = (path, names is not None)
        self._inodes[place] = _inode(*place)
        watch = library.inotify_add_watch(self._events, os.fsencode(path), what | _ADDED_TO_MASK)
        if watch >= 0:
            known = self._names.get(watch, set())  # two paths may lead to one folder
            self._names[watch] = None if names is None or known is None else known | names
            return
        number = ctypes.get_errno()
        if os.path.lexists(path):
            raise OSError(number, os.strerror(number), path)


def _inode(path: str, follows_links: bool) -> _Inode:
    try:
        status = os.stat(path, follow_symlinks=follows_links)  # noqa: PTH116 - called for many paths
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _watched(paths: Iterable[str]) -> dict[str, _Names]:
    """Return the paths to watch and, with each folder above them, those of its entries that lead to a path."""
    watched: dict[str, _Names] = {}
    for path in paths:
        watched[path] = None
        below = path
        while below != "/":
            folder, _, name = below.rpartition("/")
            folder = folder or "/"
            names = watched.setdefault(folder, set())
            if names is not None:
                names.add(os.fsencode(name))
            below = folder
    return watched


def _what_happened(piece: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the watch, the kind and the entry's name of each event."""
    place = 0
    while place < len(piece):
        watch, what, _, length = _EVENT.unpack_from(piece, place)
        place += _EVENT.size
        yield watch, what, piece[place : place + length].rstrip(b"\0")
        place += length
