"""Old names: devices that prepared claims hold under names which this version does not publish.

Another version of this driver may have named devices differently. In: the ledger's claims, their CDI files, our
devices. Out: the devices to which those names refer, and which must not be offered until their claims are gone. The
device nodes that the claim's containers got show the GPU's minor. If that is not known, every device is withheld.
Claims of another boot don't count, because their containers are gone, nor do devices of a GPU that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.hardware.facts import Problem
from dra_driver.inventory.device import Device
from dra_driver.plugin.ledger.record import ClaimRecord

CODE = "node.renamed-device"
_OURS = re.compile(r"gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-9a-f](-.+)?")  # as model/names makes them
_NODE = re.compile(r"nvidia(\d+)")


def held_under_other_names(
    records: Iterable[ClaimRecord], devices: Sequence[Device], store: CdiStore, *, driver: str, boot_id: str
) -> Mapping[str, frozenset[str]]:
    """Return the names of our devices to which each name that we don't publish refers, by "name (claim)"."""
    known = {device.name for device in devices}
    found = {}
    for record in records:
        for name in record.owned_names() if record.boot_id in (boot_id, "") else ():
            if name not in known and not _OURS.fullmatch(name):
                minors = _minors(store, ids.claim_file(driver, record.uid))
                behind = {d.name for d in devices if not minors or d.gpu.minor in minors}
                found[f"{name} ({record.full_name})"] = frozenset(behind)
    return found


def problems(held: Mapping[str, frozenset[str]]) -> tuple[Problem, ...]:
    """Return each held name as a problem."""
    return tuple(Problem(CODE, name, "held by a claim under the name that another version published") for name in held)


def _minors(store: CdiStore, file: str) -> frozenset[int]:
    """Return the minors of the GPUs whose device nodes are in a claim's CDI file."""
    document: Mapping[str, Any] = store.read(file) or {}
    return frozenset(
        int(match[1])
        for device in document.get("devices") or ()
        for path in _paths((device.get("containerEdits") or {}).get("deviceNodes") or ())
        if (match := _NODE.fullmatch(PurePath(path).name))
    )


def _paths(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        yield str(node.get("path", ""))
