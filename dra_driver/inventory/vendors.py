"""Which table of names a vendor's devices are published with.

In: the vendor of the facts. Out: rows by type of device. A vendor's table is imported with its first device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dra_driver.inventory.attributes import ROWS
from dra_driver.inventory.device import DeviceType
from dra_driver.inventory.published import Published

Rows = Mapping[DeviceType, tuple[Published, ...]]


@cache
def rows_of(vendor: str) -> Rows:
    """Return the rows that each type of a vendor's devices carries."""
    if vendor == "amd":
        from dra_driver.inventory.amd_attributes import AMD_ROWS  # noqa: PLC0415 - see above

        return dict.fromkeys(DeviceType, AMD_ROWS)
    return ROWS  # NVIDIA's, and those of simulated machines
