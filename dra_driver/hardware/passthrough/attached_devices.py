"""What is attached to a PCI function: the device nodes below it by their numbers, disks, and network interfaces.

In: roots and an address. Out: values read now. A graphics card's audio function has the nodes of a sound card below it,
its USB controller those of everything that is plugged in. Unbinding a function waits in the kernel until its nodes are
closed, and takes a disk or a network interface from the host without checking whether it is in use.
Source: Linux, Documentation/ABI/testing/sysfs-devices (`dev`: major and minor); sound/core/init.c, snd_card_free; RFC
2863, operstate.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.hardware.pci import function_folder, read_text
from dra_driver.hardware.port import Roots

_DEEPEST, _MAX_FOLDERS = 24, 20_000  # hubs on hubs are not deeper than this
_NUMBERS = re.compile(r"(\d{1,4}):(\d{1,7})")


@dataclass(frozen=True, slots=True)
class AttachedDevices:
    """`nodes` are the numbers of character devices; `in_use` names disks, and network interfaces that are not down."""

    nodes: frozenset[int]
    in_use: tuple[str, ...] = ()


def read_attached_devices(roots: Roots, address: str) -> AttachedDevices:
    """Return what is attached to a function; nothing for one that is not on the bus."""
    nodes: set[int] = set()
    in_use: list[str] = []
    home = os.path.realpath(function_folder(roots, address))
    for folder in _folders(home):
        above = folder.removeprefix(home).split("/")[1:-1]
        name = folder.rpartition("/")[2]
        if "block" in above:
            if above[-1] == "block":
                in_use.append(f"disk {name}")
        elif above[-1:] == ["net"]:
            if read_text(f"{folder}/operstate") != "down":
                in_use.append(f"network interface {name}")
        elif found := _NUMBERS.fullmatch(read_text(f"{folder}/dev") or ""):
            nodes.add(os.makedev(int(found[1]), int(found[2])))
    return AttachedDevices(frozenset(nodes), tuple(in_use))


def _folders(home: str) -> Iterator[str]:
    """Yield the folders below one, links excepted, up to a bound."""
    pending, count = deque([(home, 0)]), 0
    while pending and count < _MAX_FOLDERS:
        folder, depth = pending.popleft()
        count += 1
        if depth:
            yield folder
        if depth < _DEEPEST:
            pending.extend((one, depth + 1) for one in _own_folders(folder))


def _own_folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(one.path for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []
