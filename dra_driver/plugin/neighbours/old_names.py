"""Renamed: devices that prepared claims hold under names which this version does not publish.

Another version of this driver may have named devices otherwise. In: the ledger's claims, their CDI files, our devices.
Out: which of our devices stand behind those names, and so must not be offered before their claims are gone. What a
container was given tells: its device nodes carry the GPU's minor. Where that is not known every device is withheld.
Never: a claim of another boot, whose containers are gone; a device of a GPU that is gone.
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
from dra_driver.plugin.ledger.record import Record

CODE = "node.renamed-device"
_OURS = re.compile(r"gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-9a-f](-.+)?")  # as model/names gives them
_NODE = re.compile(r"nvidia(\d+)")


def held_under_other_names(
    records: Iterable[Record], devices: Sequence[Device], store: CdiStore, *, driver: str, boot_id: str
) -> Mapping[str, frozenset[str]]:
    """Give, by "name (claim)", which of our devices stand behind each name that is none of ours."""
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
    """Return what is held, each as a problem."""
    return tuple(Problem(CODE, name, "held by a claim under the name that another version gave it") for name in held)


def _minors(store: CdiStore, file: str) -> frozenset[int]:
    """Return the GPUs whose nodes a claim's CDI file hands out."""
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
