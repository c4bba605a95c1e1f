"""Device metadata: files in which containers find facts about their devices, and the mounts that show them there.

There is one file for each request of a claim. Its name contains the claim's UID, so that a claim that was deleted and
made again under its name has another file. A running container has the file itself mounted, not its name, so changes
are written into the same file. The files lie below the CDI folder, where no runtime looks for CDI files. That folder is
usually in memory, so no commit of the ledger waits until they reach a disk. If it is on a disk, they are not synced:
after a power failure the kubelet prepares a claim again before it starts a container, and lost files are written then.
Source: KEP-5304; CDI reference library: folders within a CDI folder are not read.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dra_driver.claims.reports.metadata import RequestMetadata, generation_of
from dra_driver.model.edits import Mount
from dra_driver.model.errors import PrepareError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_MAX_BYTES = 256 * 1024  # 32 devices with 32 attributes each need less than half of this, in both versions
_OPTIONS = ("ro", "bind", "nosuid", "nodev", "noexec")


class DeviceMetadata:
    """The metadata files of one driver's claims on a node. The caller of a method holds the claim's lock."""

    def __init__(self, cdi_folder: Path, driver: str) -> None:
        self._root = os.fspath(cdi_folder / f"{driver}-metadata")  # a string: Paths are slower

    def write(self, requests: tuple[RequestMetadata, ...], uuids: Mapping[str, str]) -> Iterator[tuple[str, Mount]]:
        """Write the facts about the devices into the files; yield the CDI device that mounts each file, and the mount.

        Idempotent. `uuids` are the UUIDs of the partitions that were made, by device name.

        Raises: PrepareError("prepare.metadata-write", LATER).
        """
        for request in requests:
            path = f"{self._root}/{request.uid}_{request.base_request}.json"
            there = _read(path)
            generation = generation_of(there)
            if not generation or there.rstrip() != request.render(generation, uuids).rstrip():
                try:
                    _put(path, request.render(generation + 1, uuids), len(there))
                except OSError as exc:
                    why = f"metadata of request {request.request!r} can't be written to {path}: {exc.strerror or exc}"
                    hint = (
                        "free space on the file system of the CDI folder, or start the agent with --device-metadata off"
                    )
                    raise PrepareError("metadata-write", why, hint=hint, retry=Retry.LATER) from exc
            yield request.carrier, Mount(path, request.container_path, _OPTIONS)

    def remove(self, uid: str) -> None:
        """Remove the files of a claim. Idempotent. One that can't be removed is logged, and left to the next sweep."""
        for name in self._names():
            if _owner(name) != uid:
                continue
            try:
                os.unlink(f"{self._root}/{name}")  # noqa: PTH108
            except FileNotFoundError:
                pass
            except OSError as exc:
                log.warning("metadata not removed", extra=fields(file=f"{self._root}/{name}", err=str(exc)))

    def owners(self) -> set[str]:
        """Return the UIDs of the claims that have files."""
        return {_owner(name) for name in self._names()}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root)  # noqa: PTH208
        except OSError:  # no file has been written yet
            return []


def _owner(name: str) -> str:
    """Return the UID of a file's claim; no request has an underscore in its name."""
    return name.rpartition("_")[0]


def _put(path: str, content: bytes, length: int) -> None:
    """Write the content into the file at `path`, which other processes may have open, and make it if it is missing.

    `length` is that of the present content: shorter content is filled up with newlines, so that the file never shrinks.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        fd = os.open(path, flags, 0o644)
    try:
        os.fchmod(fd, 0o644)
        content = content.ljust(length, b"\n")
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    """Return the content of a file; b"" if it does not exist or can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
