"""Claim results: a claim's identity and its allocated devices, read from an object that may be malformed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.model.wire import ClaimWire

ClaimName = tuple[str, str]
"""A claim's namespace and name."""


def results(claim: ClaimWire) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a claim's allocation; those that don't name a device are left out."""
    found: Any = claim
    for key in ("status", "allocation", "devices", "results"):
        found = found.get(key) if isinstance(found, dict) else None
    for result in found if isinstance(found, list) else ():
        if isinstance(result, dict) and all(isinstance(result.get(key), str) for key in ("driver", "pool", "device")):
            yield result


def name_of(claim: ClaimWire) -> ClaimName:
    """Return a claim's namespace and name."""
    metadata = _metadata(claim)
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def uid_of(claim: ClaimWire) -> str:
    """Return a claim's UID, "" if it is not known."""
    return str(_metadata(claim).get("uid", ""))


def _metadata(claim: ClaimWire) -> Mapping[str, Any]:
    metadata = claim.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
