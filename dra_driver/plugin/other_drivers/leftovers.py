"""Leftovers: the CDI files that another driver of our name wrote for claims, and the devices that they hold.

In: the folder of CDI files. Out: the names of each claim's devices, by claim UID. NVIDIA's driver writes one file for
each claim that it prepares, with our file name but another ending, and removes it when the claim is unprepared: while
the file exists, containers may hold the devices, whatever the kubelet reports. The files are read within limits and
without a YAML parser; a file that names no device counts as a device that can't be identified. Our own files and the
other driver's own folder are never touched.
Source: NVIDIA's DRA driver (`k8s.<driver>-claim_<uid>.yaml`, devices `<uid>-<device>`).
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from dra_driver.cdi import ids
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

SUFFIX = ".yaml"
UNNAMED = "unknown"  # for a device that the file does not name; neither we nor NVIDIA's driver use this name
FILE_BYTES = 1 << 20
MAX_FILES = 1_000
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")


def read_leftovers(cdi_root: Path, driver: str) -> Mapping[str, tuple[str, ...]]:
    """Return the devices of each claim that another driver has prepared, by the claim's UID."""
    return {uid: _devices(path, uid) for uid, path in _files(cdi_root, driver)}


def remove_leftover(cdi_root: Path, file_name: str) -> bool:
    """Remove the other driver's file for a claim (our name, another ending). Return whether it existed."""
    leftover = (cdi_root / file_name).with_suffix(SUFFIX)
    try:
        leftover.unlink()
    except FileNotFoundError:
        return False
    except OSError as fault:
        log.warning("CDI file of another driver not removed", extra=fields(file=leftover.name, err=str(fault)))
        return False
    log.info("CDI file of another driver removed", extra=fields(file=leftover.name))
    return True


def _files(cdi_root: Path, driver: str) -> Iterator[tuple[str, Path]]:
    prefix = ids.claim_file(driver, "").removesuffix(ids.SUFFIX)
    try:
        found = sorted(entry.name for entry in os.scandir(cdi_root) if entry.name.startswith(prefix))
    except OSError:
        return
    left = [name for name in found if name.endswith(SUFFIX)]
    if len(left) > MAX_FILES:
        log.warning("too many CDI files of another driver", extra=fields(count=len(left)))
    for name in left[:MAX_FILES]:
        uid = name.removeprefix(prefix).removesuffix(SUFFIX)
        if _UID.fullmatch(uid):
            yield uid, cdi_root / name


def _devices(path: Path, uid: str) -> tuple[str, ...]:
    """Return the devices that a file names; `UNNAMED` if it names none."""
    named = re.findall(rf"\bname[\"']?\s*:\s*[\"']?{re.escape(uid)}-([a-z0-9-]{{1,63}})(?=[\"'\s,}}]|$)", _text(path))
    return tuple(dict.fromkeys(named)) or (UNNAMED,)


def _text(path: Path) -> str:
    """Return the content of a file; "" if it is not a regular file or can't be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return os.read(handle, FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
