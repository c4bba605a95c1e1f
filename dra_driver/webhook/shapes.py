"""The shapes of devices: what can matter to a selector, and how many devices of a slice have each shape.

Pure. In: a ResourceSlice. Out: its shapes with their counts. A shape is the driver, the attributes, the capacities and
whether the device allows multiple allocations. Attributes that distinguish devices of one kind (UUID, PCI address,
serial) count only by their type, so that a thousand equal nodes have the same shapes as one node; the values of one
device stand for all. Selectors can't see taints, counters and the location of a device, so these are never kept.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dra_driver.model.wire import DeviceWire, SliceWire

# Attributes that distinguish devices of one shape. An author whose selector reads their values gets no warning that
# nothing matches.
IDENTITIES = frozenset(
    [
        *("uuid", "parentUUID", "uniqueID", "serial", "minor", "index", "nvlinkDomain", "fabricDomain"),
        *("pciBusID", "pciAddr", "pciAddress", "physicalFunction", "pcieRoot", "numaNode", "iommuGroup"),
    ]
)
_DIGEST_BYTES = 16
_PLAIN_MARSHAL = 2  # the newest version that writes equal values equally; later ones write references to shared objects


@dataclass(frozen=True, slots=True)
class ShapedDevice:
    """A device of a slice, the digest of its shape (`key`), and how many devices of the slice have that shape."""

    key: bytes
    driver: str
    device: DeviceWire
    count: int


def shapes_of(wire: SliceWire) -> list[ShapedDevice]:
    """Return one device of each shape in a slice; malformed devices are skipped."""
    spec = _mapping(wire.get("spec"))
    driver = str(spec.get("driver"))
    found: dict[bytes, tuple[DeviceWire, int]] = {}
    for device in _devices(spec):
        key = _shape_of(device, driver)
        first, count = found.get(key, (device, 0))
        found[key] = first, count + 1
    return [ShapedDevice(key, driver, device, count) for key, (device, count) in found.items()]


def is_identity(name: str) -> bool:
    """Return whether an attribute, with or without its domain, distinguishes devices of one shape."""
    return name.rpartition("/")[2] in IDENTITIES


def _devices(spec: Mapping[str, Any]) -> Iterator[DeviceWire]:
    """Return what selectors see of the devices."""
    devices = spec.get("devices")
    for device in map(_mapping, devices if isinstance(devices, list) else ()):
        content = _mapping(device.get("basic")) or device  # v1beta1 has the fields below `basic`
        yield {
            "attributes": _mapping(content.get("attributes")),
            "capacity": _mapping(content.get("capacity")),
            "allowMultipleAllocations": content.get("allowMultipleAllocations") is True,
        }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _shape_of(device: DeviceWire, driver: str) -> bytes:
    attributes = [
        (name, sorted(value) if is_identity(name) and isinstance(value, dict) else value)
        for name, value in sorted(device["attributes"].items())
    ]
    capacity = [
        (name, amount.get("value") if isinstance(amount, dict) else amount)
        for name, amount in sorted(device["capacity"].items())
    ]
    shape = [driver, attributes, capacity, device["allowMultipleAllocations"]]
    return blake2b(marshal.dumps(shape, _PLAIN_MARSHAL), digest_size=_DIGEST_BYTES).digest()
