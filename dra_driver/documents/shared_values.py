"""Shared values: what the devices of many ResourceSlices have in common, kept once.

In: slices as wire dicts. Out: the same slices, in which equal names, attribute values, capacities and counters are the
same objects. So no part of such a wire may be changed in place: code that needs a different one makes a copy.
"""

from __future__ import annotations

import sys
from typing import Any

_MAX_KNOWN = 65_536
_FLAT = frozenset({str, int, bool})
_WHOLE = ("capacity", "consumesCounters", "taints")


class SharedValues:
    """Values that were seen before."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def share(self, wire: Any) -> None:
        """Replace the parts that a slice has in common with earlier ones. Any other value stays as it is."""
        spec = wire.get("spec") if isinstance(wire, dict) else None
        devices = spec.get("devices") if isinstance(spec, dict) else None
        for device in devices if isinstance(devices, list) else ():
            if not isinstance(device, dict):
                continue
            attributes = device.get("attributes")
            if isinstance(attributes, dict):
                device["attributes"] = self._attributes(attributes)
            for name in _WHOLE:
                if name in device:
                    device[name] = self._kept(repr(device[name]), device[name])

    def _attributes(self, attributes: dict[str, Any]) -> dict[str, Any]:
        known, made = self._known, {}
        for key, value in attributes.items():
            name = sys.intern(key) if type(key) is str else key
            if type(value) is dict and len(value) == 1:
                ((kind, inner),) = value.items()
                if type(inner) in _FLAT:
                    known_by = kind, inner, type(inner)
                    made[name] = known.get(known_by) or self._kept(known_by, value)
                    continue
            made[name] = value
        return made

    def _kept(self, key: Any, value: Any) -> Any:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = value
        return known
