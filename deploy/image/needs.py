"""What a build needs from the machine, checked before anything is downloaded; and the progress of a build."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from debian import KEYRING

_MEGABYTE = 10**6
# Program, and the Debian package that has it.
_PROGRAMS = {"apt-get": "apt", "dpkg-deb": "dpkg"}


def missing(folder: Path, megabytes: int) -> list[str]:
    """Return a line for each thing that an image build into a folder lacks here; empty if it can start."""
    found = []
    if sys.version_info[:2] != (3, 11):
        has = ".".join(map(str, sys.version_info[:2]))
        found.append(f"Python 3.11, Debian 12's; this is {has}: make image PYTHON=python3.11 VENV=.venv-3.11")
    for program, package in _PROGRAMS.items():
        if not shutil.which(program):
            found.append(f"{program}: install {package}")
    if not KEYRING.exists():
        found.append(f"{KEYRING}: apt-get install debian-archive-keyring")
    found += [f"the Python module {name}: make test" for name in ("packaging", "pip") if not _has(name)]
    return found + lacking_disk(folder, megabytes)


def lacking_disk(folder: Path, megabytes: int) -> list[str]:
    """Return a line if a folder can't be written or has too little room."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return [f"the right to write to {place}"]
    free = shutil.disk_usage(place).free // _MEGABYTE
    return [f"{megabytes} MB of disk for {folder}; {place} has {free} MB free"] if free < megabytes else []


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@contextmanager
def step(words: str) -> Iterator[None]:
    """Write on standard error what is being done and, afterwards, how long it took."""
    began = time.monotonic()
    print(f"{words} ...", file=sys.stderr, flush=True)
    yield
    print(f"{words}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
