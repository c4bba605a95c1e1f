"""Node numbers: the device nodes that a claim's exclusive devices have to themselves, from the claim's CDI file.

In: a claim's record, and its CDI file. Out: device numbers as the kernel has them (`st_rdev`). Nodes that several
devices use are left out: those of the whole claim, as nvidiactl, and the GPU's node of a MIG partition. Nodes of
simulated devices are /dev/null, which says nothing about who uses them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from dra_driver.cdi.store import CdiStore
from dra_driver.model.errors import PrepareError
from dra_driver.model.wire import Wire
from dra_driver.plugin.effects.cdi_file import DriverCdiNames
from dra_driver.plugin.ledger.record import ClaimRecord

NULL = os.makedev(1, 3)
_PARTITION = "/dev/nvidia-caps/"  # nodes that belong to one partition; its GPU's node belongs to several


class NodeNumbers:
    """The device numbers of one node's claims, as far as their CDI files exist."""

    def __init__(self, store: CdiStore, names: DriverCdiNames) -> None:
        self._store, self._names = store, names

    def exclusive(self, record: ClaimRecord) -> frozenset[int]:
        """Return the numbers of the nodes that a claim's exclusive devices have to themselves."""
        own = {self._names.device(record.uid, name, None) for name in record.exclusive_names()}
        return frozenset(number for name, number in self._numbers(record.uid) if name in own)

    def all(self, uid: str) -> frozenset[int]:
        """Return the numbers of the nodes that one device of a claim, shared or not, has to itself."""
        return frozenset(number for _, number in self._numbers(uid))

    def _numbers(self, uid: str) -> Iterator[tuple[str, int]]:
        """Yield the name of a device in the claim's file with the number of each of its own nodes."""
        try:
            devices = (self._store.read(self._names.file(uid)) or {}).get("devices")
        except PrepareError:
            return
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, dict):
                yield from ((str(device.get("name")), number) for number in _own(_nodes(device)))


def _nodes(device: Wire) -> list[Any]:
    edits = device.get("containerEdits")
    found = edits.get("deviceNodes") if isinstance(edits, dict) else None
    return [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []


def _own(nodes: Iterable[Wire]) -> Iterator[int]:
    every = list(nodes)
    partition = [node for node in every if str(node.get("path")).startswith(_PARTITION)]
    for node in partition or every:
        major, minor = node.get("major"), node.get("minor")
        if isinstance(major, int) and isinstance(minor, int) and (number := os.makedev(major, minor)) != NULL:
            yield number
