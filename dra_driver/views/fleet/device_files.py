"""Device files: what the files of this node contain about the devices of claims (docs/metadata.md).

In: the CDI folder of a node, in which each driver has a folder of such files. Out: the content about each device of a
claim. A file is read only if its claim is shown; a file that can't be read, or that is about another claim, is
reported. Symbolic links are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.claims.reports.metadata_reading import MAX_BYTES, DescribedClaim, read_metadata
from dra_driver.model.errors import InputError

FOLDERS = "*-metadata"
_MAX_FILES = 4096
DeviceKey = tuple[str, str, str, str]
"""The request of a claim, and the driver, pool and name of a device."""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """The content about one device: the path in containers, how often it changed, and attributes as text."""

    path: str
    generation: int
    attributes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Return the attributes on one line."""
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes)
        return f"generation {self.generation}: {attributes}"


class DeviceFiles:
    """The files about devices in one CDI folder."""

    def __init__(self, cdi_folder: Path) -> None:
        self._folder = cdi_folder
        self._files: dict[str, list[Path]] = {}
        for file in self._found():
            self._files.setdefault(file.name.rpartition("_")[0], []).append(file)

    def of_claim(self, uid: str) -> tuple[dict[DeviceKey, DeviceFile], list[str]]:
        """Return the content about each device of a claim, and what is wrong with files that can't be used."""
        found: dict[DeviceKey, DeviceFile] = {}
        faults = []
        for file in self._files.get(uid, ()):
            try:
                claim = _read(file, uid)
            except (OSError, InputError) as error:
                why = error.message if isinstance(error, InputError) else error.strerror
                faults.append(f"{file.name} can't be used: {why}")
                continue
            for device in claim.devices:
                key = (device.request, device.driver, device.pool, device.name)
                found[key] = DeviceFile(claim.path_of(device), claim.generation, device.attributes)
        return found, faults

    def _found(self) -> Iterator[Path]:
        """Yield at most `_MAX_FILES` files, in the order of their names."""
        count = 0
        for folder in sorted(self._folder.glob(FOLDERS)):
            try:
                names = [] if folder.is_symlink() else sorted(os.listdir(folder))  # noqa: PTH208
            except OSError:
                continue
            for name in names:
                if name.endswith(".json") and count < _MAX_FILES:
                    count += 1
                    yield folder / name


def _read(file: Path, uid: str) -> DescribedClaim:
    """Read the file of one request of a claim. Raises: OSError, InputError."""
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise InputError("metadata", "it is not a regular file")
        claim = read_metadata(opened.read(MAX_BYTES + 1))
    if claim.uid != uid:
        raise InputError("metadata", f"it is about another claim, {claim.uid}")
    return claim
