"""Reads this driver's part of a ResourceClaim as the API server sends it; what is of other drivers is ignored.

In: the claim's JSON, untrusted until its shape is checked. Out: an `AllocatedClaim`, whose configs are sorted so that
later ones win.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters), KEP-4816 (sub-requests).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim, AllocatedDevice, ConfigEntry
from dra_driver.claims.allocated.records import FROM_CLASS, RESULT
from dra_driver.claims.allocated.shape import check_shape
from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.claims.config.reading import read_config, refuse
from dra_driver.model.errors import ClaimError, Retry
from dra_driver.model.names import is_dns_label, is_dns_subdomain
from dra_driver.model.wire import ClaimWire, Wire

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"  # annotation of claims that were made from a template
_PRECEDENCE = {FROM_CLASS: 0, "FromClaim": 1}


def decode_claim(claim_wire: ClaimWire, *, driver: str, uid: str) -> AllocatedClaim:
    """Read this driver's part of an allocated claim.

    Args:
        claim_wire: the ResourceClaim as the API server sent it; its shape is checked first.
        driver: the name of this driver.
        uid: the UID that the kubelet asked for.

    Raises: ClaimError: "claim.malformed" (no API server stores such a claim), "claim.uid-mismatch" (another claim has
    taken the name), "claim.not-allocated", "claim.not-ours" (it has no device of this driver), "claim.bad-config" and
    "claim.config-not-supported" with the paths of the fields at fault.
    """
    check_shape(claim_wire, driver)
    metadata = claim_wire.get("metadata") or {}
    full_name = f"claim {metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if metadata.get("uid") != uid:
        raise ClaimError("uid-mismatch", f"{full_name} has UID {metadata.get('uid')!r}, the kubelet asked for {uid!r}")
    allocation = (claim_wire.get("status") or {}).get("allocation")
    if not allocation:
        raise ClaimError("not-allocated", f"{full_name} is not allocated", retry=Retry.LATER)
    wire = allocation.get("devices") or {}
    devices = _results(wire, driver, _classes(claim_wire))
    if not devices:
        raise ClaimError("not-ours", f"{full_name} has no device of driver {driver} in its allocation")
    return AllocatedClaim(
        uid=uid,
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        devices=devices,
        configs=_decode_configs(wire.get("config") or (), driver, full_name),
        pods=pods_of(claim_wire),
        pod_names=_pod_names(claim_wire),
        pod_claim_name=_pod_claim_name(metadata),
    )


def pods_of(claim_wire: ClaimWire) -> tuple[str, ...]:
    """Return the UIDs of the pods for which a claim is reserved; the shape of the claim must have been checked."""
    consumers = (claim_wire.get("status") or {}).get("reservedFor") or ()
    return tuple(c["uid"] for c in consumers if c.get("resource") == "pods" and c.get("uid"))


def _pod_names(claim_wire: ClaimWire) -> tuple[tuple[str, str], ...]:
    consumers = (claim_wire.get("status") or {}).get("reservedFor") or ()
    named = ((c.get("uid"), c.get("name")) for c in consumers if c.get("resource") == "pods" and c.get("uid"))
    return tuple((uid, name) for uid, name in named if isinstance(name, str) and is_dns_subdomain(name))


def _pod_claim_name(metadata: Wire) -> str:
    """Return the name in the annotation, or "" if it is not a valid one: any user may annotate a claim."""
    annotations = metadata.get("annotations")
    name = annotations.get(POD_CLAIM_NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) and is_dns_label(name) else ""


def _results(wire: Wire, driver: str, classes: Mapping[str, str]) -> tuple[AllocatedDevice, ...]:
    """Return a driver's devices in an allocation. `classes` are the device classes by request."""
    results = (result for result in wire.get("results") or () if result.get("driver") == driver)
    return tuple(RESULT.read(result, device_class=classes.get(result["request"], "")) for result in results)


def _classes(claim_wire: ClaimWire) -> dict[str, str]:
    """Return the device class of each request and sub-request, by the name that a result has.

    The specification decides nothing here, so a malformed one only leaves the classes unknown.
    """
    spec = claim_wire.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    found: dict[str, str] = {}
    for request in _mappings(devices, "requests"):
        _record_class(found, str(request.get("name")), request.get("exactly"))
        for choice in _mappings(request, "firstAvailable"):
            _record_class(found, f"{request.get('name')}/{choice.get('name')}", choice)
    return found


def _mappings(value: Any, key: str) -> list[Wire]:
    rows = value.get(key) if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _record_class(found: dict[str, str], request: str, value: Any) -> None:
    name = value.get("deviceClassName") if isinstance(value, dict) else None
    if isinstance(name, str) and is_dns_subdomain(name):
        found[request] = name


def _decode_configs(entries: Any, driver: str, full_name: str) -> tuple[ConfigEntry, ...]:
    """Decode the configs of this driver, class before claim; the faults of all entries are raised together."""
    faults: list[ConfigFault] = []
    decoded: list[tuple[int, ConfigEntry]] = []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        path = f"status.allocation.devices.config[{index}].opaque.parameters"
        config = read_config(opaque.get("parameters"), path, faults, driver)
        if config is not None:
            source = entry.get("source", "")
            rank = _PRECEDENCE.get(source, len(_PRECEDENCE))
            decoded.append((rank, ConfigEntry(config, tuple(entry.get("requests") or ()), source == FROM_CLASS)))
    refuse(faults, full_name)
    return tuple(entry for _, entry in sorted(decoded, key=lambda ranked: ranked[0]))
