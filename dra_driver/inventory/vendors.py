"""The names with which the devices of a vendor are published, by type of device.

In: the vendor of the facts. Out: rows. Which names a type carries is decided here once, not for each device: if a fact
is unknown, its name is left out, and no other name takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from dra_driver.hardware.published.rows import COMPUTE, MEMORY_SLICES_TABLED, Published
from dra_driver.hardware.vendors import load_vendor
from dra_driver.model import limits
from dra_driver.model.shares import DeviceType
from dra_driver.model.vendors import DEFAULT_VENDOR, registered

Rows = Mapping[DeviceType, tuple[Published, ...]]


@cache
def rows_of(vendor: str) -> Rows:
    """Return the rows that each type of a vendor's devices carries. Simulated machines have those of the default."""
    rows = load_vendor((registered(vendor) or DEFAULT_VENDOR).name).rows
    return {kind: carried(rows, kind) for kind in DeviceType}


def carried(table: Iterable[Published], device_type: DeviceType) -> tuple[Published, ...]:
    """Return the rows that devices of a type carry, in the order of the table.

    These are all names without a rank and then, with room kept for the memory slices of a partition, as many of our own
    by rank as fit.

    Source: Kubernetes API resource/v1 ResourceSliceMaxAttributesAndCapacitiesPerDevice.
    """
    rows = [row for row in table if device_type in row.types]
    # What shares of one device are counted in differs: no device has percent of compute and a number of replicas.
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - sum(row.rank == 0 and row.name != COMPUTE for row in rows)
    if device_type is DeviceType.MIG:
        room -= MEMORY_SLICES_TABLED
    ours = sorted((row for row in rows if row.rank), key=lambda row: row.rank)[: max(room, 0)]
    return tuple(row for row in rows if row.rank == 0 or row in ours)
