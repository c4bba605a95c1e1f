"""The checkpoint that NVIDIA's DRA driver leaves: claims with their partitions, as releases since 25.12 write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dra_driver.base.names import NVIDIA_DRIVER

Made = tuple[str, str, str]  # device name, UUID of the partition, UUID of its GPU


def write_checkpoint(path: Path, claims: dict[str, list[Made]], *, boot_id: str, started: dict[str, str] | None = None):
    """Write completed claims by UID with their partitions, and `started` ones with the name of their device."""
    done = {uid: _completed(uid, made) for uid, made in claims.items()}
    half = {
        uid: {**_allocated(uid, device), "checkpointState": "PrepareStarted"} for uid, device in (started or {}).items()
    }
    v2 = {"checksum": 1, "preparedClaims": {**done, **half}, "nodeBootID": boot_id}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"checksum": 2, "v1": {"preparedClaims": done}, "v2": v2}))


def _completed(uid: str, made: list[Made]) -> dict[str, Any]:
    devices = [_device(*one) for one in made]
    groups = [{"devices": devices, "configState": {"mpsControlDaemonID": "", "timeSliceApplied": False}}]
    allocated = _allocated(uid, made[0][0] if made else "gpu-0")
    return {**allocated, "checkpointState": "PrepareCompleted", "preparedDevices": groups}


def _allocated(uid: str, device: str) -> dict[str, Any]:
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": "node-1", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    return {"name": f"name-of-{uid}", "namespace": "default", "status": status}


def _device(name: str, uuid: str, parent_uuid: str) -> dict[str, Any]:
    minor = int(name.split("-")[1])
    concrete = {"parentMinor": minor, "giId": 1, "ciId": 0, "migUUID": uuid, "parentUUID": parent_uuid}
    device = {"Requests": ["gpu"], "PoolName": "node-1", "DeviceName": name, "CDIDeviceIDs": ["x"]}
    return {"gpu": None, "mig": {"concrete": concrete, "device": device}}
