"""The NVIDIA driver root as a tree of its own: paths inside it come in, paths on the host go out.

The root is the host's / or a driver container's file system (/run/nvidia/driver), which this process sees below a
mount. Symlinks are followed as if that mount were /, so none leads outside. The tree remembers the paths that it looked
at, which makes it cheap to check whether another look would find the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from dra_driver.model.stamp import Stamp, stamp_of, stamp_of_status

_MAX_LINKS = 40  # the same as the kernel's own limit (ELOOP)
_SETTLED_NS = 50_000_000  # file systems take time stamps from the kernel's coarse clock (4 to 10 ms)


class DriverRoot:
    """One look at a driver root: this process sees it at `mount`, and its path on the host is `host`.

    All paths passed in and returned are absolute and inside the root ("/usr/lib64/libcuda.so.1"), except the results of
    `here` and `on_host`. Two threads must not use one object at the same time.
    """

    def __init__(self, mount: str, host: str) -> None:
        self._mount = mount.rstrip("/")
        self._host = host.rstrip("/")
        self._looked: dict[str, Stamp | None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._started_ns = time.time_ns()

    def here(self, path: str) -> str:
        """Return the path by which this process opens a resolved path."""
        return self._mount + path

    def on_host(self, path: str) -> str:
        """Return the path by which the container runtime opens a resolved path."""
        return self._host + path

    def resolve(self, path: str) -> str | None:
        """Follow every symlink of a path inside the root; return None when it leads nowhere."""
        done: list[str] = []
        todo = path.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            inner = "/".join(["", *done, part])
            try:
                mode = os.lstat(self._mount + inner).st_mode
            except OSError:
                self._note(inner)
                return None
            if not stat.S_ISLNK(mode):
                done.append(part)
                continue
            self._note(inner)
            links += 1
            if links > _MAX_LINKS:
                return None
            target = os.readlink(self._mount + inner)  # noqa: PTH115
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; none when it is missing or is not a folder."""
        resolved = self.resolve(folder)
        if resolved is None:
            return frozenset()
        if resolved not in self._names:
            self._note(resolved)
            try:
                self._names[resolved] = frozenset(os.listdir(self._mount + resolved))  # noqa: PTH208
            except OSError:
                self._names[resolved] = frozenset()
        return self._names[resolved]

    def find(self, path: str) -> str | None:
        """Resolve a path whose folder may change often (/tmp, /run), remembering only the path itself."""
        resolved = self.resolve(path)
        if resolved is not None:
            self._note(resolved)
        return resolved

    def find_program(self, name: str, folders: Iterable[str]) -> str | None:
        """Return the first executable file of that name in the folders, or None."""
        for folder in folders:
            if name in self.names(folder):
                resolved = self.resolve(f"{folder}/{name}")
                if resolved and os.access(self.here(resolved), os.X_OK) and Path(self.here(resolved)).is_file():
                    return f"{folder}/{name}"
        return None

    def is_unchanged(self) -> bool:
        """Return whether everything that was looked at is as it was."""
        mount, lstat = self._mount, os.lstat
        for path, stamp in self._looked.items():
            try:
                now = stamp_of_status(lstat(mount + path or "/"))
            except OSError:
                now = None
            if now != stamp:
                return False
        return True

    def is_settled(self) -> bool:
        """Return whether `is_unchanged` can be trusted.

        It can't if a folder changed during the look, since another change within the same clock tick would not show.
        """
        recent = range(self._started_ns - _SETTLED_NS, time.time_ns() + 1)
        return not any(stamp and stamp.mtime_ns in recent for stamp in self._looked.values())

    def _note(self, path: str) -> None:
        folder = path.rpartition("/")[0] or "/"
        if path not in self._looked and folder not in self._names:
            self._looked[path] = _stamp(self._mount + path)


def _stamp(path: str) -> Stamp | None:
    return stamp_of(path or "/", follows_links=False)
