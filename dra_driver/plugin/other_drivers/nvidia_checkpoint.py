"""NVIDIA checkpoint: the MIG partitions that NVIDIA's DRA driver made for claims, as it recorded them.

In: the file `checkpoint.json` in the plugin's folder, which that driver leaves behind when it is removed. Out: its
claims with their partitions. The file is read within limits and field by field, since its schema differs between
releases. Its checksum is not checked, because it covers the Go structures of one release. A record of an earlier boot
is ignored, because a reboot removes every partition.
Source: NVIDIA's DRA driver (`v2.preparedClaims`, `nodeBootID`; a claim's `preparedDevices[].devices[].mig.concrete`).
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.plugin.node_claims.claim_results import results

FILE = "checkpoint.json"
FILE_BYTES = 16 << 20
_STARTED, _COMPLETED = "PrepareStarted", "PrepareCompleted"
_NAME = re.compile(r"gpu-(\d{1,4})-mig-.+-(\d{1,4})-(\d{1,3})")


@dataclass(frozen=True, slots=True)
class CheckpointedPartition:
    """One partition of a claim: the minor of its GPU, the id of its GPU instance profile, and its first memory slice.

    `uuid` and `parent_uuid` are empty if the claim's preparation was not completed, because the partition was then not
    recorded.
    """

    minor: int
    profile_id: int
    start: int
    uuid: str = ""
    parent_uuid: str = ""

    @property
    def placement(self) -> tuple[int, int]:
        """Return the profile's id and the first memory slice."""
        return self.profile_id, self.start


@dataclass(frozen=True, slots=True)
class CheckpointedClaim:
    """One claim of the other driver; `name` is "namespace/name", or the UID if the name was not recorded."""

    uid: str
    name: str
    partitions: tuple[CheckpointedPartition, ...]


def read_checkpoint(path: Path, *, driver: str, boot_id: str) -> tuple[CheckpointedClaim, ...]:
    """Return the claims in a checkpoint of this boot; none if there is no such file or it has another form.

    Raises: ValueError if there is a file, but it can't be read, or it is damaged.
    """
    document, changed_at = _read(path)
    newest = _mapping(document.get("v2")) or _mapping(document.get("v1"))
    recorded = newest.get("nodeBootID")
    is_of_this_boot = recorded == boot_id if recorded else changed_at > _booted_at()
    if not is_of_this_boot:
        return ()
    claims = _mapping(newest.get("preparedClaims"))
    return tuple(_claim(uid, _mapping(claim), driver) for uid, claim in claims.items() if isinstance(uid, str))


def _claim(uid: str, claim: Mapping[str, Any], driver: str) -> CheckpointedClaim:
    name = f"{claim.get('namespace')}/{claim.get('name')}" if claim.get("name") else uid
    if claim.get("checkpointState", _COMPLETED) == _STARTED:
        names = (str(one["device"]) for one in results({"status": claim.get("status")}) if one["driver"] == driver)
        found = [partition for device in names if (partition := _named(device))]
    else:
        found = list(_concrete(claim))
    return CheckpointedClaim(uid, name, tuple(found))


def _concrete(claim: Mapping[str, Any]) -> Iterator[CheckpointedPartition]:
    """Yield the partitions that were recorded after they had been made.

    Releases that could not make partitions recorded `info` instead of `concrete`.
    """
    for group in _list(claim.get("preparedDevices")):
        for device in _list(_mapping(group).get("devices")):
            mig = _mapping(_mapping(device).get("mig"))
            made, name = _mapping(mig.get("concrete")), _mapping(mig.get("device")).get("DeviceName")
            uuid, parent_uuid = made.get("migUUID"), made.get("parentUUID")
            partition = _named(name) if isinstance(name, str) else None
            if partition and isinstance(uuid, str) and isinstance(parent_uuid, str) and uuid and parent_uuid:
                yield CheckpointedPartition(partition.minor, *partition.placement, uuid, parent_uuid)


def _named(device: str) -> CheckpointedPartition | None:
    match = _NAME.fullmatch(device)
    return CheckpointedPartition(int(match[1]), int(match[2]), int(match[3])) if match else None


def _read(path: Path) -> tuple[Mapping[str, Any], float]:
    """Return a file's JSON object and the time when the file was changed; an empty object if there is no such file.

    Raises: ValueError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}, 0.0
    except OSError as error:
        raise ValueError(str(error)) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
            raise ValueError(f"it is no regular file, or it has more than {FILE_BYTES >> 20} MiB")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return _mapping(json.loads(file.read(FILE_BYTES))), status.st_mtime
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    finally:
        os.close(handle)


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
