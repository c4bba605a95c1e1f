"""The page of one device of the map: its published facts, its possible partitions, and which claims hold it since when.

In: a board, and the device's node, pool and name. Out: its document.
"""

from __future__ import annotations

from collections import Counter

from dra_driver.allocation.pools.devices import DeviceId
from dra_driver.model.errors import InputError
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.views.board.board import Board
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.fleet.claim_branches import Holding
from dra_driver.views.fleet.device_facts import attribute_of, memory_of, memory_text, profile_of
from dra_driver.views.fleet.device_rows import is_placement

_MAX_HOLDERS = 200


def device_page(board: Board, node: str, pool: str, name: str) -> OutputDocument:
    """Return the document of a device, or that of a GPU of which only parts are published.

    Raises: InputError if there is none.
    """
    found = _published(board, node, pool, name)
    holders = _held(board, pool, name)
    if not found and not holders:
        raise InputError("no-device", f"node {node} publishes no device {name}", hint="it may be gone: see the map")
    own: DeviceWire = next(
        (wire for _, wire in found if wire["name"] == name), found[0][1] if found else {"name": name}
    )
    content = {
        "node": node,
        "driver": found[0][0] if found else holders[0][0][0],
        "pool": pool,
        "device": name,
        "published": any(wire["name"] == name for _, wire in found),
        "memory": memory_text(memory) if (memory := memory_of(own)) else None,
        "attributes": _attributes(own),
        "capacity": _capacity(own),
        "taints": [_taint(one) for _, wire in found for one in wire.get("taints") or ()][:50],
        "placements": _placements([wire for _, wire in found]),
        "holders": [_holder(board, key, one) for key, one in holders[:_MAX_HOLDERS]],
    }
    return OutputDocument(DocumentKind.DEVICE_PAGE, content)


def _attributes(device: DeviceWire) -> list[Wire]:
    return [
        {"name": key, "value": attribute_of({"attributes": {key: value}}, key.rpartition("/")[2])}
        for key, value in sorted((device.get("attributes") or {}).items())
    ]


def _capacity(device: DeviceWire) -> list[Wire]:
    return [
        {"name": key, "value": str(value.get("value"))} for key, value in sorted((device.get("capacity") or {}).items())
    ]


def _published(board: Board, node: str, pool: str, name: str) -> list[tuple[str, DeviceWire]]:
    """Return the device with a name and the parts of it, each with its driver."""
    return [
        (one["spec"]["driver"], wire)
        for one in board.slices_by_node().get(node, ())
        if one["spec"]["pool"]["name"] == pool
        for wire in one["spec"].get("devices") or ()
        if _is_of(wire["name"], name)
    ]


def _held(board: Board, pool: str, name: str) -> list[tuple[DeviceId, Holding]]:
    """Return which claims hold the device with a name, or a part of it."""
    return [
        (key, one)
        for (_, own), devices in board.held().items()
        if own == pool
        for key, several in devices.items()
        if _is_of(key[2], name)
        for one in several
    ]


def _is_of(device: str, gpu: str) -> bool:
    return device == gpu or device.startswith((f"{gpu}-mig-", f"{gpu}-share-"))


def _taint(taint: Wire) -> Wire:
    return {
        "key": str(taint.get("key")),
        "value": taint.get("value"),
        "effect": str(taint.get("effect")),
        "since": taint.get("timeAdded"),
    }


def _placements(devices: list[DeviceWire]) -> Wire:
    """Return how many placements of each profile the GPU has."""
    return dict(Counter(profile_of(one) for one in devices if is_placement(one)))


def _holder(board: Board, device: DeviceId, holding: Holding) -> Wire:
    claim = holding.claim
    metadata, status = claim["metadata"], claim.get("status") or {}
    namespace = metadata.get("namespace") or "default"
    allocation = status.get("allocation") or {}
    return {
        "device": device[2],
        "namespace": namespace,
        "claim": metadata["name"],
        "request": holding.result["request"],
        "adminAccess": holding.is_admin,
        "since": allocation.get("allocationTimestamp") or metadata.get("creationTimestamp"),
        "pods": [_pod(board, namespace, str(one.get("name"))) for one in status.get("reservedFor") or ()][:50],
    }


def _pod(board: Board, namespace: str, name: str) -> Wire:
    pod = board.find("Pod", namespace, name)
    phase = ((pod or {}).get("status") or {}).get("phase")
    return {"name": name, "phase": phase, "node": ((pod or {}).get("spec") or {}).get("nodeName")}
