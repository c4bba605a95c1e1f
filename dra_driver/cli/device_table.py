"""The table of published devices, as `devices` and the demo show it.

In: devices as ResourceSlices have them. Out: lines on a console.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.cli.output import Column, print_text, show_table
from dra_driver.model.wire import DeviceWire
from dra_driver.views.fleet.device_rows import FEW_TITLES, NUMBERS, TITLES, device_rows, placement_lines


def show_devices(out: Any, title: str, devices: Sequence[DeviceWire], *, is_wide: bool = False) -> None:
    """Show devices as a table; without `is_wide`, the placements of a GPU are counted, and listed below the table."""
    columns = [Column(name, is_number=name in NUMBERS) for name in (TITLES if is_wide else TITLES[:FEW_TITLES])]
    show_table(out, title, columns, device_rows(devices, is_wide=is_wide))
    for line in () if is_wide else placement_lines(devices):
        print_text(out, line)
