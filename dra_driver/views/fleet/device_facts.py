"""Facts about a published device for people: its product, its profile, and its memory in one unit everywhere.

In: devices as ResourceSlices have them. Out: text and numbers. Attributes are found by their names alone, in any
domain.
"""

from __future__ import annotations

from dra_driver.allocation.pools.capacity import parse
from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import Wire


def string_of(wire: Wire, name: str) -> str | None:
    """Return an attribute that is a string; None if the device has none of this name."""
    for key, value in (wire.get("attributes") or {}).items():
        if key.rpartition("/")[2] == name and isinstance(value, dict) and isinstance(value.get("string"), str):
            return str(value["string"])
    return None


def attribute_of(wire: Wire, name: str) -> str:
    """Return an attribute of any type as text, lists joined by commas; "-" if the device has none of this name."""
    for key, value in (wire.get("attributes") or {}).items():
        if key.rpartition("/")[2] == name and isinstance(value, dict):
            found = next(iter(value.values()), "-")
            return ", ".join(map(str, found)) if isinstance(found, list) else str(found)
    return "-"


def profile_of(wire: Wire) -> str:
    """Return the profile of a MIG partition, "" for any other device."""
    return string_of(wire, "profile") or ""


def part_of(wire: Wire) -> str:
    """Return the profile of a partition of any kind; "" for a device that is not a partition.

    A partition that the hardware itself makes has the partitioning mode of its GPU, or "partition" if that is unknown.
    """
    if (string_of(wire, "type") or "").endswith("-partition"):
        return string_of(wire, "partitionProfile") or "partition"
    return profile_of(wire)


def memory_of(wire: Wire) -> str | None:
    """Return the published quantity of memory, as selectors see it, such as "81559Mi"; None if there is none."""
    for key, value in (wire.get("capacity") or {}).items():
        if key.rpartition("/")[2] == "memory" and isinstance(value, dict):
            return str(value.get("value"))
    return None


def memory_text(quantity: str) -> str:
    """Return an amount of memory in GiB, followed by the quantity to use in a selector.

    >>> memory_text("81559Mi")
    '79.6 GiB (81559Mi)'
    """
    return Quantity.of(int(parse(quantity).value), binary=True).readable
