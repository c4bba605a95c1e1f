"""DeviceMetadata: the files in which containers read about their devices, and the mounts that bring them there.

There is one file for each request of a claim, in a folder named after the claim. A running container has the file
itself, not its name: what changes for the same claim is written into the same file, and a claim that was deleted and
made again under its name gets a new one. The files lie below the CDI folder, where no runtime looks for them. They are
in memory there, so that no commit of the ledger waits until they reach a disk; the kubelet prepares every claim of a
booted node again.
Source: KEP-5304; CDI reference library: folders within a CDI folder are not read.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.claims.metadata import RequestMetadata, owner_of
from dra_driver.model.edits import Mount
from dra_driver.model.errors import PrepareError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FILE = "metadata.json"
_UNFINISHED = ".unfinished"
_MOST_BYTES = 256 * 1024  # 32 devices with 32 attributes each have less than half of it, in both versions
_NAME_BYTES = 255  # of a folder (NAME_MAX)
_OPTIONS = ("ro", "bind", "nosuid", "nodev", "noexec")


class DeviceMetadata:
    """The metadata files of one driver's claims on a node. Threads and two agents may share the folder."""

    def __init__(self, cdi_folder: Path, driver: str) -> None:
        self.root = cdi_folder / f"{driver}-metadata"
        self._root = os.fspath(self.root)

    def write(self, requests: tuple[RequestMetadata, ...], uuids: Mapping[str, str]) -> Iterator[tuple[str, Mount]]:
        """Make the files hold what is known of the devices; yield the CDI device that mounts each one, and the mount.

        Idempotent. `uuids` are those of the partitions that were made, by device name.

        Raises: PrepareError("prepare.metadata-write", LATER).
        """
        for request in requests:
            path = f"{self._folder(request.namespace, request.claim, request.uid)}/{request.base_request}/{FILE}"
            there = _read(path)
            uid, generation = owner_of(there)
            if uid == request.uid and there.rstrip() == request.render(generation, uuids).rstrip():
                yield request.carrier, Mount(path, request.container_path, _OPTIONS)
                continue
            try:
                with self._locked():
                    if uid == request.uid:
                        _rewrite(path, request.render(generation + 1, uuids), len(there))
                    else:
                        _put(path, request.render(1, uuids))
            except OSError as exc:
                message = f"metadata of request {request.request!r} can't be written to {path}: {exc.strerror or exc}"
                hint = "free space on the file system of the CDI folder, or start the agent with --device-metadata off"
                raise PrepareError("metadata-write", message, hint=hint, retry=Retry.LATER) from exc
            yield request.carrier, Mount(path, request.container_path, _OPTIONS)

    def remove(self, namespace: str, name: str, uid: str) -> None:
        """Remove the files of a claim, but not those of a later claim of its name. Idempotent.

        What can't be removed is logged; the next sweep tries again.
        """
        folder = self._folder(namespace, name, uid)
        if os.path.lexists(folder):
            self._remove(Path(folder), lambda found: found == uid)

    def sweep(self, is_known: Callable[[str], bool]) -> None:
        """Remove the files of claims that are not known, by UID, and what a crash left of a file."""
        if not os.path.lexists(self.root):
            return
        for folder in _entries(self.root):
            self._remove(folder, lambda found: not found or not is_known(found))

    def _folder(self, namespace: str, name: str, uid: str) -> str:
        folder = f"{namespace}_{name}"
        return f"{self._root}/{folder if len(folder) <= _NAME_BYTES else uid}"

    def _remove(self, folder: Path, is_unwanted: Callable[[str], bool]) -> None:
        try:
            with self._locked():
                for request in _entries(folder):
                    if is_unwanted(owner_of(_read(str(request / FILE)))[0]):
                        for name in (FILE, f"{FILE}{_UNFINISHED}"):
                            (request / name).unlink(missing_ok=True)
                        request.rmdir()
                with suppress(OSError):  # a request of a later claim is in it
                    folder.rmdir()
        except OSError as exc:
            log.warning("metadata not removed", extra=fields(file=str(folder), err=str(exc)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that no file is removed that another claim has just put in its place."""
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


# Paths are texts from here on: pathlib is slower, and every call of the kubelet's comes here.


def _put(path: str, content: bytes) -> None:
    """Put a new file in the place of what is there."""
    unfinished = f"{path}{_UNFINISHED}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(unfinished, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        fd = os.open(unfinished, flags, 0o644)
    try:
        os.fchmod(fd, 0o644)
        _write_whole(fd, content)
    finally:
        os.close(fd)
    os.rename(unfinished, path)  # noqa: PTH104


def _rewrite(path: str, content: bytes, length: int) -> None:
    """Write into the file that containers have, in one call; blanks at the end take the place of a longer content."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _write_whole(fd, content.ljust(length, b"\n"))
    finally:
        os.close(fd)


def _write_whole(fd: int, content: bytes) -> None:
    """Write everything in one call, so that no reader sees a part. Raises: OSError."""
    if os.write(fd, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read(path: str) -> bytes:
    """Return the content of a regular file, b"" where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _entries(folder: Path) -> list[Path]:
    """Return the paths of what is in a folder; nothing where there is no folder."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
