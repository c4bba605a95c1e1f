"""This machine: the boot, whose id shows whether earlier changes to the hardware can still be in effect; its cores.

Source: getcpu(2), sched_setaffinity(2).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = "sys/kernel/random/boot_id"


def boot_id_file(proc_root: str | os.PathLike[str]) -> Path:
    """Return the path of the boot id's file below a mount of /proc."""
    return Path(proc_root, _BOOT_ID)


def read_boot_id(proc_root: str | os.PathLike[str]) -> str:
    """Return the id of this boot. Raises: OSError where it can't be read."""
    return boot_id_file(proc_root).read_text(encoding="ascii").strip()


def present_core() -> int:
    """Return the number of the core on which the calling thread runs.

    Raises: AttributeError where the C library can't tell.
    """
    return _sched_getcpu()()


def cores_of_process() -> set[int]:
    """Return the cores on which threads may run that are not bound: those of the main thread. Raises: OSError."""
    return os.sched_getaffinity(os.getpid())


@functools.cache
def _sched_getcpu() -> Callable[[], int]:
    from ctypes import PyDLL  # noqa: PLC0415 - keeps the interpreter's lock; most processes never need it

    found: Callable[[], int] = PyDLL(None).sched_getcpu
    return found
