"""Records: the part of a claim's CDI document that only this driver reads, kept beside it so that no container sees it.

In: a document's bytes. Out: the bytes that the container runtime reads, and those of the records; and both joined
again. Pure. A claim's steps are recorded as environment entries with a prefix of this driver's, because they have to be
found with the document if the ledger is lost. CDI's annotations would serve as well, but they need CDI 0.6.0, which
containerd 1.7 refuses.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from dra_driver.model.wire import CdiWire

PREFIX = "DRA_DRIVER_"
_DEVICES = re.compile(r'"devices":\s*')
_ENCODER, _DECODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False), json.JSONDecoder()


@functools.lru_cache(maxsize=8)  # a repeated Prepare makes the same document again
def split(content: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a document without records, and those of its devices' records, empty if it has none.

    Only the devices of the document (from `cdi.spec.render`) are decoded: the edits common to all may be 60 KiB.
    """
    if PREFIX.encode() not in content:
        return content, b""
    text = content.decode()
    place = _DEVICES.search(text)  # only a version and a kind come before them, which can't hold this text
    if place is None:
        return content, b""
    start = place.end()
    devices, end = _DECODER.raw_decode(text, start)
    records = {}
    for device in devices:
        edits = device.get("containerEdits") or {}
        env = list(edits.get("env") or ())
        if found := [entry for entry in env if entry.startswith(PREFIX)]:
            records[device["name"]] = found
            edits["env"] = [entry for entry in env if not entry.startswith(PREFIX)]
            if not edits["env"]:
                del edits["env"]
    if not records:
        return content, b""
    return f"{text[:start]}{_ENCODER.encode(devices)}{text[end:]}".encode(), f"{_ENCODER.encode(records)}\n".encode()


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
