"""Device status: what a claim's status reports about its devices once they are prepared, in the API's form.

In: the claim's devices and what is known of each on the node. Out: the driver's entries of `status.devices`.
Source: Kubernetes API resource/v1, AllocatedDeviceStatus (at most 8 conditions, 10 KiB of data); KEP-4817.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_driver.claims.allocated.allocated_claim import AllocatedDevice
from dra_driver.model.taints import DeviceTaint
from dra_driver.model.wire import Wire

READY, HEALTHY = "Ready", "Healthy"
DATA_BYTES = 10 * 1024
MAX_NODES = 64  # device nodes of one device; a device has about five
_MAX_FAULTS = 4


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """What is known of one device of a prepared claim.

    `nodes` are paths in containers. `taints` are those of its faults; None where health is not watched. `sharing` is
    the strategy by which the device is shared, "" for one that is not.
    """

    uuid: str = ""
    driver_version: str = ""
    nodes: tuple[str, ...] = ()
    sharing: str = ""
    taints: tuple[DeviceTaint, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One entry. Each of `conditions` is a type, whether it holds, a reason and a message."""

    driver: str
    device: AllocatedDevice
    known: KnownDevice
    conditions: tuple[tuple[str, bool, str, str], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Derive the conditions from what is known."""
        found = [(READY, True, "Prepared", "the device is ready for the containers of the claim")]
        if self.known.taints is not None:
            found.append(_health(self.known.taints))
        object.__setattr__(self, "conditions", tuple(found))

    def wire(self, now: str, before: Wire) -> Wire:
        """Return the entry. A condition whose status is as in `before` keeps its transition time; others get `now`."""
        entry: Wire = {"driver": self.driver, "pool": self.device.pool, "device": self.device.device}
        if self.device.share_id:
            entry["shareID"] = self.device.share_id
        since = {
            one.get("type"): (one.get("status"), one.get("lastTransitionTime"))
            for one in before.get("conditions") or ()
            if isinstance(one, dict)
        }
        entry["conditions"] = [
            {
                "type": kind,
                "status": str(holds),
                "reason": reason,
                "message": message,
                "lastTransitionTime": _since(since.get(kind), str(holds)) or now,
            }
            for kind, holds, reason, message in self.conditions
        ]
        entry["data"] = self._data()
        return entry

    def _data(self) -> Wire:
        known = self.known
        data: Wire = {"uuid": known.uuid, "driverVersion": known.driver_version, "sharing": known.sharing}
        data = {key: value for key, value in data.items() if value}
        if known.nodes:
            data["nodes"] = list(known.nodes[:MAX_NODES])
        return data if len(json.dumps(data)) <= DATA_BYTES else {"uuid": known.uuid}


def applied_statuses(statuses: Sequence[DeviceStatus], before: object, now: str) -> list[Wire]:
    """Return the entries to apply. `before` is the current `status.devices`, `now` a time as the API writes it."""
    there = {_key(entry): entry for entry in (before if isinstance(before, list) else ()) if isinstance(entry, dict)}
    return [status.wire(now, there.get(_key(status.wire(now, {})), {})) for status in statuses]


def own_entries(entries: object, driver: str) -> list[Wire]:
    """Return the entries of a driver in `status.devices`."""
    rows: Iterable[object] = entries if isinstance(entries, list) else ()
    return [entry for entry in rows if isinstance(entry, dict) and entry.get("driver") == driver]


def _health(taints: tuple[DeviceTaint, ...]) -> tuple[str, bool, str, str]:
    if not taints:
        return HEALTHY, True, "NoFault", "no fault is known"
    faults = ", ".join(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in taints[:_MAX_FAULTS])
    return HEALTHY, False, "Fault", faults


def _since(found: tuple[object, object] | None, status: str) -> str:
    return found[1] if found and found[0] == status and isinstance(found[1], str) else ""


def _key(entry: Wire) -> tuple[object, ...]:
    return tuple(entry.get(key) for key in ("driver", "pool", "device", "shareID"))
