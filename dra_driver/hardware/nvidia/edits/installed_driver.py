"""The driver that is installed in a driver root: the folder of its libraries, and its version.

In: one reading of the root. Out: a folder and the version in the name of the library in it. No library is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.installed_names import (
    LIBCUDA,
    LIBNVML,
    LIBRARY_FOLDERS,
)
from dra_driver.hardware.nvidia.edits.ldcache import library_paths


def find_driver(root: DriverRoot, loaded: str | None) -> tuple[str, str]:
    """Return the folder of libcuda and the version in its name, or two empty texts where there is none.

    The loaded version is preferred, compared by number (580.65.6 is 580.65.06); else the first folder's newest version.
    """
    for pattern, soname in ((LIBCUDA, "libcuda.so.1"), (LIBNVML, "libnvidia-ml.so.1")):
        found = [(folder, v) for folder in LIBRARY_FOLDERS for v in _versions(root, folder, pattern)]
        matching = [pair for pair in found if loaded and is_same_version(pair[1], loaded)]
        if not matching:
            cached = [(folder, v) for folder in _cached_folders(root, soname) for v in _versions(root, folder, pattern)]
            matching = [pair for pair in cached if loaded and is_same_version(pair[1], loaded)]
            found += cached
        if found:
            return (matching or found)[0]
    return "", ""


def is_same_version(one: str, other: str) -> bool:
    """Return whether two driver versions are the same by number; leading zeros don't count."""
    return _numbers(one) == _numbers(other)


def _versions(root: DriverRoot, folder: str, pattern: re.Pattern[str]) -> list[str]:
    matches = (pattern.fullmatch(name) for name in root.names(folder))
    return sorted((m[1] for m in matches if m), key=_numbers, reverse=True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _cached_folders(root: DriverRoot, soname: str) -> Iterator[str]:
    cache = root.find("/etc/ld.so.cache")
    if cache is None:
        return
    try:
        content = Path(root.here(cache)).read_bytes()
    except OSError:
        return
    for path in library_paths(content, soname):
        yield path.rpartition("/")[0]
        if resolved := root.resolve(path):
            yield resolved.rpartition("/")[0]
