"""Records: the part of a claim's CDI document that only this driver reads, kept beside it so that no container sees it.

In: the records of a claim's devices. Out: their bytes; and a document joined with its records again. Pure. A claim's
steps are recorded as environment entries with a prefix of this driver's, because they have to be found with the
document if the ledger is lost. CDI's annotations would serve as well, but they need CDI 0.6.0, which containerd 1.7
refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.model.wire import CdiWire

PREFIX = "DRA_DRIVER_"


def record_text(entries: Mapping[str, Sequence[str]]) -> bytes:
    """Return the bytes of records, given by device name; empty if there are none."""
    records = {name: list(own) for name, own in sorted(entries.items()) if own}
    return f"{json.dumps(records, separators=(',', ':'), ensure_ascii=False)}\n".encode() if records else b""


def join(document: CdiWire, records: object) -> CdiWire:
    """Return a document with its devices' records; entries that are not records are left out."""
    known: Mapping[Any, Any] = records if isinstance(records, Mapping) else {}
    devices = []
    for device in document.get("devices") or ():
        own = known.get(device.get("name")) if isinstance(device, Mapping) else None
        entries = (
            [one for one in own if isinstance(one, str) and one.startswith(PREFIX)] if isinstance(own, list) else []
        )
        if entries:
            edits = device.get("containerEdits") or {}
            device = {**device, "containerEdits": {**edits, "env": [*(edits.get("env") or ()), *entries]}}  # noqa: PLW2901
        devices.append(device)
    return {**document, "devices": devices} if known else document
