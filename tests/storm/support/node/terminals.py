"""Terminals that stand for the nodes of simulated GPUs: each can be opened like a device, and has a number of its own.

No driver is behind the nodes of simulated GPUs, and an open of only the path is no use of a device. So the numbers are
those of pseudo terminals, in a file system of terminals that this process alone has; containers get them under the
names of the GPUs' nodes.
"""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from pathlib import Path

from tests.storm.support.node.devices import ADDRESSES, FIRST_MINOR, OF_A_GPU
from tests.storm.support.sandbox import mount

COUNT = (FIRST_MINOR + len(ADDRESSES)) * OF_A_GPU
DESCRIPTORS = 4096
_UNLOCK = 0x40045431  # TIOCSPTLCK


class Terminals:
    """All terminals of a node. They exist as long as this object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mount("devpts", folder, "devpts", 0, "newinstance,ptmxmode=0666,mode=0666")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, DESCRIPTORS), max(hard, DESCRIPTORS)))
        self._masters = [os.open(folder / "ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC) for _ in range(COUNT)]
        for master in self._masters:
            fcntl.ioctl(master, _UNLOCK, struct.pack("i", 0))

    def close(self) -> None:
        for master in self._masters:
            os.close(master)
