"""Claims as branches: with their devices and pods, below a device or on their own.

In: claims, slices and pods as wire dicts. Out: `Branch`es, with flags for what deserves a reader's attention. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.allocation.pools.devices import DeviceId
from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.pools.replicas import names_of
from dra_driver.allocation.pools.taints import taint_text
from dra_driver.model.wire import ClaimWire, SliceWire, Wire
from dra_driver.views.fleet.branch import Branch, BranchFlag
from dra_driver.views.fleet.device_files import DeviceFiles

TERMINATING = "Terminating"  # kubectl's word for an object that is being deleted
_UUID_CHARS = 64
Pods = Mapping[tuple[Any, Any], Wire] | None  # by namespace and name; None if the pods are not known


@dataclass(frozen=True, slots=True)
class Holding:
    """One result of an allocated claim."""

    claim: ClaimWire
    result: Wire

    @property
    def is_admin(self) -> bool:
        """Whether the claim only has admin access, so that others can hold the device too."""
        return bool(self.result.get("adminAccess"))


def is_held(holders: Iterable[Holding]) -> bool:
    """Return whether one of the claims that have a device holds it."""
    return any(not one.is_admin for one in holders)


def holdings(claims: Sequence[ClaimWire]) -> dict[DeviceId, list[Holding]]:
    """Return which claims hold each device, including those with admin access."""
    held: dict[DeviceId, list[Holding]] = {}
    for claim in claims:
        for result in allocation_results(claim):
            key = (result["driver"], result["pool"], result["device"])
            held.setdefault(key, []).append(Holding(claim, result))
    return held


def claim_tree(
    claims: Sequence[ClaimWire],
    slices: Sequence[SliceWire] | None,
    pods: Sequence[Wire] | None = None,
    *,
    files: DeviceFiles | None = None,
) -> list[Branch]:
    """Return the claims with their devices and pods. `slices` and `pods` are None if they are not known.

    With `files`, what the files of this node contain about a device is a branch below the device.
    """
    published = _published(slices or ())
    tainted = _taint_flags(slices or ())
    known = None if pods is None else {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in pods}
    branches = []
    for claim in sorted(claims, key=claim_name):
        branch = claim_branch(claim, known)
        held = []
        for result in allocation_results(claim):
            key = (result["driver"], result["pool"], result["device"])
            is_known = slices is None or key in published
            flags = tainted.get(key, ()) if is_known else (BranchFlag("not-published", "not published any more"),)
            held.append(_held_device(claim, result, flags))
        if files is not None:
            _add_files(branch, held, files, claim["metadata"].get("uid") or "")
        branch.children = [*held, *branch.children]
        branches.append(branch)
    return branches


def _published(slices: Sequence[SliceWire]) -> set[DeviceId]:
    return {
        (s["spec"]["driver"], s["spec"]["pool"]["name"], name)
        for s in slices
        for name in names_of(s["spec"].get("devices") or ())
    }


def _held_device(claim: ClaimWire, result: Wire, flags: tuple[BranchFlag, ...]) -> Branch:
    driver, pool, device = result["driver"], result["pool"], result["device"]
    uuid, unwell = _reported_status(claim, result)
    text = f"for {result['request']}{_consumed(result)}{f', {uuid}' if uuid else ''}"
    facts = {"driver": driver, "pool": pool, "device": device, **_result_facts(result)}
    return Branch("device", f"{place_name(driver, pool)}/{device}", text, flags=(*flags, *unwell), facts=facts)


def _add_files(branch: Branch, held: Sequence[Branch], files: DeviceFiles, uid: str) -> None:
    """Add what this node's files contain to the devices of a claim, and what is wrong with the files to the claim."""
    contents, faults = files.of_claim(uid)
    branch.flags = (*branch.flags, *(BranchFlag("metadata-file", fault) for fault in faults))
    for device in held:
        key = tuple(device.facts[name] for name in ("request", "driver", "pool", "device"))
        if one := contents.get(key):
            device.children.append(Branch("file", one.path, str(one)))


def _taint_flags(slices: Sequence[SliceWire]) -> dict[DeviceId, tuple[BranchFlag, ...]]:
    """Return the flags of all devices that have taints: one flag for each taint."""
    return {
        (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]): tuple(
            BranchFlag("taint", f"taint {taint_text(taint)}") for taint in device["taints"]
        )
        for one in slices
        for device in one["spec"].get("devices") or ()
        if device.get("taints")
    }


def place_name(driver: str, pool: str) -> str:
    """Return the name of a pool with its driver, unless the driver is already a part of the name."""
    return pool if driver in pool.split("/") else f"{driver}/{pool}"


def allocation_results(claim: ClaimWire) -> Sequence[Wire]:
    """Return the results in the status of an allocated claim; none if it has no allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Sequence[Wire] = (allocation.get("devices") or {}).get("results") or ()
    return results


def claim_branch(claim: ClaimWire, pods: Pods, result: Wire | None = None) -> Branch:
    """Return a claim with its pods; `result` is the allocation result for the device below which it is drawn."""
    status = claim.get("status") or {}
    reserved: Sequence[Wire] = status.get("reservedFor") or ()
    flags = []
    if status.get("allocation") and not reserved:
        flags.append(BranchFlag("unused", "allocated, but no pod uses it"))
    text = "" if status.get("allocation") else "waits for an allocation"
    if result is not None:
        text = "admin access" if result.get("adminAccess") else f"request {result['request']}{_consumed(result)}"
    if claim["metadata"].get("deletionTimestamp"):
        text = f"{text}, {TERMINATING}" if text else TERMINATING
    namespace = claim["metadata"].get("namespace")
    facts = {
        "namespace": namespace,
        "allocated": bool(status.get("allocation")),
        "terminating": bool(claim["metadata"].get("deletionTimestamp")),
        **(_result_facts(result) if result is not None else {}),
    }
    branch = Branch("claim", claim_name(claim), text, flags=tuple(flags), facts=facts)
    for one in reserved:
        pod = None if pods is None else pods.get((namespace, one["name"]))
        text, pod_flags = _pod(one, pod, is_known=pods is not None)
        phase = ((pod or {}).get("status") or {}).get("phase")
        pod_facts = {"phase": phase, "terminating": text == TERMINATING}
        branch.children.append(Branch("pod", one["name"], text, flags=pod_flags, facts=pod_facts))
    return branch


def _reported_status(claim: ClaimWire, result: Wire) -> tuple[str, tuple[BranchFlag, ...]]:
    """Return the UUID that a claim's status has for a device, and a flag if it is not healthy (docs/metadata.md)."""
    keys = ("driver", "pool", "device", "shareID")
    for entry in (claim.get("status") or {}).get("devices") or ():
        if all(entry.get(key) == result.get(key) for key in keys):
            data = entry.get("data")
            uuid = data.get("uuid") if isinstance(data, dict) else None
            ill = [one for one in entry.get("conditions") or () if (one["type"], one["status"]) == ("Healthy", "False")]
            flags = tuple(BranchFlag("unhealthy", f"unhealthy: {one.get('message') or one['reason']}") for one in ill)
            return (uuid if isinstance(uuid, str) and len(uuid) <= _UUID_CHARS else ""), flags
    return "", ()


def _result_facts(result: Wire) -> Wire:
    return {
        "request": result["request"],
        "adminAccess": bool(result.get("adminAccess")),
        "consumedCapacity": result.get("consumedCapacity") or {},
    }


def _pod(reserved: Wire, pod: Wire | None, *, is_known: bool) -> tuple[str, tuple[BranchFlag, ...]]:
    if pod is None or (reserved.get("uid") and pod["metadata"].get("uid") not in {None, reserved["uid"]}):
        return "", (BranchFlag("leaked", "leaked reservation: there is no such pod"),) if is_known else ()
    phase = (pod.get("status") or {}).get("phase") or ""
    if phase in {"Succeeded", "Failed"}:
        return phase, (BranchFlag("leaked", "leaked reservation: the pod has ended"),)
    if pod["metadata"].get("deletionTimestamp"):
        return TERMINATING, ()
    if phase == "Pending" and (pod.get("spec") or {}).get("nodeName"):
        return phase, (BranchFlag("not-prepared", "its devices are not prepared yet"),)
    return phase, ()


def _consumed(result: Wire) -> str:
    amounts = result.get("consumedCapacity") or {}
    return "".join(f", {name} {amount}" for name, amount in sorted(amounts.items()))
