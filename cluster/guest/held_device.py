"""A device that this process has open by VFIO, as a virtual machine has it: its container, its group, the device.

Source: Linux, include/uapi/linux/vfio.h.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_SET_IOMMU, _SET_CONTAINER, _GET_DEVICE = 0x3B66, 0x3B68, 0x3B6A
_TYPE1 = 1


class HeldDevice:
    """The device as long as the context lasts."""

    def __init__(self, address: str) -> None:
        self._address, self._open = address, list[int]()

    def __enter__(self) -> HeldDevice:
        group = Path("/sys/bus/pci/devices", self._address, "iommu_group").readlink().name
        container = self._opened("/dev/vfio/vfio")
        number = self._opened(f"/dev/vfio/{group}")
        fcntl.ioctl(number, _SET_CONTAINER, container.to_bytes(4, "little"))
        fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
        self._open.append(fcntl.ioctl(number, _GET_DEVICE, bytearray(self._address.encode() + b"\0"), True))
        return self

    def __exit__(self, *_: object) -> None:
        for number in reversed(self._open):
            os.close(number)

    def _opened(self, path: str) -> int:
        self._open.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return self._open[-1]
