"""StateFile: what happened to simulated devices since the node started, by device.

In: changes of one device at a time. Out: each device's state now. It is kept in a file, which is locked while it is
changed and renamed into place, so that it outlives the agent and two agents see the same hardware; another boot id
empties it. Without a path nothing outlives the process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.model.stamp import Stamp, stamp_of

State = Mapping[str, Any]  # JSON


class StateFile:
    """States by device, in the file at `path`."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        # As texts: pathlib is slower, and every change of a partition comes here.
        self._file = os.fspath(path) if path else ""
        self._lock_file = os.fspath(path.with_suffix(".lock")) if path else ""
        self._temporary = os.fspath(path.with_suffix(f".{os.getpid()}.new")) if path else ""
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._held: Mapping[str, State] = {}
        self._known: tuple[Stamp | None, Mapping[str, State]] | None = None  # the file when it was last read
        self._changes = 0

    def fingerprint(self) -> Hashable:
        """Return a value that differs after every change."""
        if self._path is None:
            return self._changes
        return stamp_of(self._path)

    def read(self) -> Mapping[str, State]:
        """Return the states as they are now."""
        if self._path is None:
            return self._held
        stamp, known = stamp_of(self._path), self._known
        if stamp is None or known is None or known[0] != stamp:
            known = self._known = stamp, self._content()
        return known[1]

    def _content(self) -> Mapping[str, State]:
        assert self._path is not None  # noqa: S101 - there is a file
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return document["gpus"] if document["bootId"] == self._boot_id else {}

    def change(self, device: str, edit: Callable[[State | None], State]) -> None:
        """Change one device's state; `edit` receives the current state (None if there is none), and may raise.

        An empty state counts as none; when no device has a state any more, the file is removed.
        """
        with self._lock, self._locked_file():
            states = dict(self.read())
            states[device] = edit(states.get(device))
            self._write({name: state for name, state in states.items() if state})

    @contextmanager
    def _locked_file(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = os.open(self._lock_file, flags, 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._lock_file, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write(self, states: Mapping[str, State]) -> None:
        self._changes += 1
        if self._path is None:
            self._held = states
            return
        if not states:
            self._path.unlink(missing_ok=True)
            return
        content = json.dumps({"bootId": self._boot_id, "gpus": states}).encode()
        try:
            _write_whole(self._temporary, content)
            os.rename(self._temporary, self._file)  # noqa: PTH104
        except OSError:  # the disk is full: no GPU would need one to be given back
            Path(self._temporary).unlink(missing_ok=True)
            with self._path.open("r+b") as file:
                file.write(content)
                file.truncate()
        self._known = stamp_of(self._path), json.loads(content)["gpus"]


def _write_whole(path: str, content: bytes) -> None:
    """Write a new file. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)
