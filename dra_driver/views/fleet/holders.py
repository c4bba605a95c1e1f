"""The claims that hold devices of one driver, with the pods that use them: as lines, and as a document.

In: claims as wire dicts. Out: text, and plain dicts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_driver.model.wire import Wire
from dra_driver.views.access import UnseenObjects, unseen_document
from dra_driver.views.envelope import DocumentKind, OutputDocument


def holders(claims: Iterable[Wire], driver: str) -> list[Wire]:
    """Return each claim that holds devices of a driver: its namespace, name, devices, and users."""
    found = []
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        devices = [{"pool": one["pool"], "device": one["device"]} for one in results if one.get("driver") == driver]
        if devices:
            meta = claim["metadata"]
            users = [{"resource": u["resource"], "name": u["name"]} for u in claim["status"].get("reservedFor") or ()]
            found.append({"namespace": meta["namespace"], "name": meta["name"], "devices": devices, "usedBy": users})
    return found


def holder_line(holder: Wire) -> str:
    """Return one claim as a line of text."""
    devices = ", ".join(f"{one['pool']}/{one['device']}" for one in holder["devices"])
    users = ", ".join(f"{one['resource']} {one['name']}" for one in holder["usedBy"])
    return f"claim {holder['namespace']}/{holder['name']}: {devices}; used by {users or 'no pod'}"


def holders_document(found: Sequence[Wire], driver: str, unseen: Sequence[UnseenObjects]) -> OutputDocument:
    """Return the document of the claims that were found, and of the objects that may not be read."""
    content = {"driver": driver, "claims": list(found), "unseen": unseen_document(unseen)}
    return OutputDocument(DocumentKind.CLAIMS_IN_USE, content)
