"""Patching: JSON merge patch, and as much of server-side apply as status.devices needs.

In: a stored object and a patch. Out: a new object. Never: a change of either input.
Source: RFC 7386; Kubernetes list-map keys of ResourceClaim status.devices (driver, device, pool, shareID).
"""

from __future__ import annotations

import copy
from typing import Any

from dra_driver.model.wire import Wire

DeviceKey = tuple[str, str, str, str]


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch.

    >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def device_key(entry: Wire) -> DeviceKey:
    """Return the list-map key of an entry of status.devices."""
    return entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID", "")


def apply_status(stored: Wire, applied: Wire, owned: frozenset[DeviceKey]) -> tuple[Wire, frozenset[DeviceKey]]:
    """Apply a status: each entry of status.devices belongs to one field manager, and everything else is merged.

    `owned` are the entries that this field manager has applied before; those that it now leaves out are removed. Return
    the new object and the entries that the manager now owns.
    """
    status = dict(applied.get("status") or {})
    entries = status.pop("devices", None) or []
    result: Wire = merge_patch(stored, {"status": status})
    mine = {device_key(e): copy.deepcopy(e) for e in entries}
    kept = []
    for entry in (stored.get("status") or {}).get("devices") or []:
        key = device_key(entry)
        if key in mine:
            kept.append(mine.pop(key))
        elif key not in owned:
            kept.append(copy.deepcopy(entry))
    result["status"] = {**result.get("status", {}), "devices": [*kept, *mine.values()]}
    if not result["status"]["devices"]:
        del result["status"]["devices"]
    return result, frozenset(device_key(e) for e in entries)
