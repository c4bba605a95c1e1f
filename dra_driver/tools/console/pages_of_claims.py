"""Pages of claims and pods: those that wait come first, then claims that hold devices; and the page of one claim.

In: a board. Out: documents. The reason why something waits comes from `views.worlds`, as for the command `explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dra_driver.allocation.pools import DeviceId, PoolId
from dra_driver.allocation.usage import taint_text
from dra_driver.base.errors import InputError
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.node.cdi import device_name
from dra_driver.node.cdi import kind as cdi_kind
from dra_driver.simulator.workloads import classes_by_resource
from dra_driver.tools.console.board import SEVERAL_NODES, Board, Key, natural
from dra_driver.tools.explain.advice import advised
from dra_driver.tools.explain.explanations import SubjectExplainer, explanations_document, subjects_of
from dra_driver.tools.fleet.branches import Holding, allocation_results
from dra_driver.tools.world.access import DocumentKind, OutputDocument, unseen_document
from dra_driver.tools.world.pod_status import (
    PATIENCE_SECONDS,
    claim_names,
    condition_of,
    container_trouble,
    is_bound,
    is_prepared,
    scheduler_message,
    seconds_since,
)
from dra_driver.tools.world.profiles import attribute_of, is_placement, memory_of, memory_text, profile_of
from dra_driver.tools.world.workloads import extended_resources

MAX_ROWS = 200
_PENDING, _ALLOCATED = "pending", "allocated"


def claims_page(board: Board, text: str, namespace: str, offset: int, count: int, *, by: str = "") -> OutputDocument:
    """Return the document of some rows: pending pods, pending claims that no such pod uses, then allocated claims.

    Of these, claims with a pod that does not run come first, each with what keeps it from running. With `by` (which is
    namespace, node or state), rows stand in groups, each below a row with its heading. Raises: InputError for others.
    """
    if by and by not in _GROUPS:
        raise InputError("question", f"by is one of {', '.join(_GROUPS)}")
    rows = [one for one in _rows(board) if _is_wanted(one, text.lower(), namespace)]
    lines = _grouped(rows, _GROUPS[by]) if by else rows
    content = {
        "version": board.version,
        "pending": sum(one["state"] == _PENDING for one in rows),
        "matching": len(rows),
        "lines": len(lines),
        "offset": offset,
        "rows": lines[offset : offset + min(count, MAX_ROWS)],
        "unseen": unseen_document(board.world.unseen),
    }
    return OutputDocument(DocumentKind.CLAIMS_PAGE, content)


def _state_of(row: Wire) -> str:
    if row["terminating"]:
        return "terminating"
    return "stuck" if row["state"] == _ALLOCATED and row["trouble"] else str(row["state"])


_GROUPS: Mapping[str, Callable[[Wire], str]] = {
    "namespace": lambda row: str(row["namespace"]),
    "node": lambda row: ", ".join(row["nodes"]) or "no node",
    "state": _state_of,
}


def _grouped(rows: Sequence[Wire], group_of: Callable[[Wire], str]) -> list[Wire]:
    groups: dict[str, list[Wire]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    names = sorted(groups, key=natural)
    return [line for name in names for line in ({"heading": name, "count": len(groups[name])}, *groups[name])]


def _is_wanted(row: Wire, text: str, namespace: str) -> bool:
    return text in row["name"].lower() and (not namespace or row["namespace"] == namespace)


def _rows(board: Board) -> list[Wire]:
    used: set[tuple[str, str]] = set()
    pods = [one for one in board.of("Pod") if _is_pending(one)]
    served = classes_by_resource(board.of("DeviceClass"), with_implicit=board.world.serves_implicit_names)
    found = [_pod_row(one, used, served) for one in pods]
    found = [one for one in found if one["claims"]]
    claims = board.of("ResourceClaim")
    found += [_claim_row(one) for one in claims if not allocation_results(one) and _key(one) not in used]
    users = _users_by_claim(board)
    places = _nodes_of_pools(board)
    allocated = [_claim_row(one, users.get(_key(one), ()), places) for one in claims if allocation_results(one)]
    in_order = sorted(allocated, key=lambda row: (not row["trouble"], row["namespace"], row["name"]))
    return [*sorted(found, key=_age), *in_order]


def _nodes_of_pools(board: Board) -> dict[PoolId, str]:
    by_node = board.slices_by_node()
    return {
        (one["spec"]["driver"], one["spec"]["pool"]["name"]): node
        for node, slices in by_node.items()
        for one in slices
        if node != SEVERAL_NODES
    }


def _users_by_claim(board: Board) -> dict[tuple[str, str], list[Wire]]:
    """Return the pods on nodes by the namespace and name of each of their claims."""
    users: dict[tuple[str, str], list[Wire]] = {}
    for pod in board.of("Pod"):
        for name in claim_names(pod) if is_bound(pod) else ():
            users.setdefault((_namespace(pod), name), []).append(pod)
    return users


def _trouble(pod: Wire) -> str:
    """Return what keeps a pod on a node from running; "" if nothing does, or it has only just been bound."""
    if not is_prepared(pod):
        bound_at = str(condition_of(pod, "PodScheduled").get("lastTransitionTime") or "")
        waited = seconds_since(bound_at, datetime.now(UTC))
        return f"pod {pod['metadata']['name']}: not prepared for {waited:.0f} s" if waited > PATIENCE_SECONDS else ""
    trouble = container_trouble(pod)
    return f"pod {pod['metadata']['name']}: {trouble}" if trouble else ""


def _age(row: Wire) -> tuple[str, str, str]:
    return str(row["since"] or ""), row["namespace"], row["name"]


def _is_pending(pod: Wire) -> bool:
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return phase == "Pending" and not (pod.get("spec") or {}).get("nodeName")


def _pod_row(pod: Wire, used: set[tuple[str, str]], served: Mapping[str, str]) -> Wire:
    """Return the row of a pod with its claims and `served` resources, and add the claims that it uses to `used`."""
    namespace = _namespace(pod)
    made = _made_claims(pod)
    names = []
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = made.get(entry["name"]) or entry.get("resourceClaimName") or entry.get("resourceClaimTemplateName")
        names.append(str(name or entry["name"]))
        used.add((namespace, names[-1]))
    names += [name for name in extended_resources(pod) if name in served]
    said = scheduler_message(pod)
    return _row("pod", pod, _PENDING, claims=names, devices=[], pods=[], nodes=[], trouble=said)


def _claim_row(claim: Wire, users: Sequence[Wire] = (), places: Mapping[PoolId, str] | None = None) -> Wire:
    results = allocation_results(claim)
    pods = [str(one.get("name")) for one in (claim.get("status") or {}).get("reservedFor") or ()]
    devices = [f"{one['pool']}/{one['device']}" for one in results]
    state, pools = _ALLOCATED if results else _PENDING, {(one["driver"], one["pool"]) for one in results}
    known = {node for pool in pools if (node := (places or {}).get(pool))}
    nodes = sorted({str(pod["spec"]["nodeName"]) for pod in users} | known)
    trouble = "; ".join(filter(None, map(_trouble, users)))
    more = {"devices": devices[:20], "pods": pods[:20], "nodes": nodes[:20], "trouble": trouble}
    return _row("claim", claim, state, claims=[], **more)


def _row(kind: str, wire: Wire, state: str, **more: Any) -> Wire:
    metadata = wire["metadata"]
    allocation = (wire.get("status") or {}).get("allocation") or {}
    return {
        "subject": kind,
        "namespace": _namespace(wire),
        "name": metadata["name"],
        "state": state,
        "terminating": bool(metadata.get("deletionTimestamp")),
        "since": allocation.get("allocationTimestamp") or metadata.get("creationTimestamp"),
        **more,
    }


def claim_page(board: Board, namespace: str, name: str, read: tuple[Wire, Sequence[Wire]] | None) -> OutputDocument:
    """Return the document of one claim. `read` is the claim with its pods as they were just read from a cluster.

    Raises: InputError if there is none.
    """
    claim = read[0] if read else board.find("ResourceClaim", namespace, name)
    if claim is None:
        raise InputError("missing", f"there is no claim {namespace}/{name}")
    status = claim.get("status") or {}
    users = [str(one.get("name")) for one in status.get("reservedFor") or ()][:50]
    known = read[1] if read else [pod for one in users if (pod := board.find("Pod", namespace, one)) is not None]
    conditions = {(one.get("driver"), one.get("pool"), one.get("device")): one for one in status.get("devices") or ()}
    content = {
        **_claim_row(claim, [pod for pod in known if is_bound(pod)], _nodes_of_pools(board)),
        "requests": list(_requests(claim)),
        "holds": [_held(board, claim, one, conditions) for one in allocation_results(claim)],
        "users": users,
        "containers": [one for pod in known for one in _containers(pod, name)],
    }
    return OutputDocument(DocumentKind.CLAIM_PAGE, content)


def _requests(claim: Wire) -> Iterator[Wire]:
    for one in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        for wanted in (one.get("exactly"), *(one.get("firstAvailable") or ())):
            if not wanted:
                continue
            yield {
                "name": one["name"] if wanted is one.get("exactly") else f"{one['name']}/{wanted.get('name')}",
                "class": str(wanted.get("deviceClassName") or ""),
                "count": wanted.get("count"),
                "selectors": [str((each.get("cel") or {}).get("expression")) for each in wanted.get("selectors") or ()],
            }


def _held(board: Board, claim: Wire, result: Wire, conditions: dict[Any, Wire]) -> Wire:
    place = (result["driver"], result["pool"], result["device"])
    reported = (conditions.get(place) or {}).get("conditions") or ()
    uid = claim["metadata"].get("uid")
    return {
        "request": result["request"],
        "driver": place[0],
        "pool": place[1],
        "device": place[2],
        "cdiDevice": _cdi_device(str(uid), result) if uid else None,
        "taints": _taints(board, place),
        "conditions": [f"{one.get('type')}={one.get('status')}: {one.get('message') or ''}" for one in reported],
        "consumed": {str(key): str(value) for key, value in (result.get("consumedCapacity") or {}).items()},
    }


def _cdi_device(uid: str, result: Wire) -> str | None:
    """Return the CDI device that containers get from one of our drivers; None for another driver's device."""
    driver = str(result["driver"])
    if not driver.startswith("gpu."):
        return None
    return f"{cdi_kind(driver)}={device_name(uid, result['device'], result.get('shareID'))}"


def _taints(board: Board, place: tuple[str, str, str]) -> list[str]:
    """Return the taints of a device as it is published now."""
    slices: Iterable[Wire] = board.slices_by_node().get(place[1], ()) or board.of("ResourceSlice")
    for one in slices:
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == place[:2]:
            for device in one["spec"].get("devices") or ():
                if device["name"] == place[2]:
                    return [taint_text(taint) for taint in device.get("taints") or ()]
    return []


def _containers(pod: Wire, claim: str) -> Iterator[Wire]:
    """Yield the containers of a pod that use a claim, with the health that the kubelet reports for their devices."""
    made = _made_claims(pod)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    asked = spec.get("resourceClaims") or ()
    entries = {one["name"] for one in asked if claim in {made.get(one["name"]), one.get("resourceClaimName")}}
    health: dict[str, list[str]] = {}
    for one in status.get("containerStatuses") or ():
        for resource in one.get("allocatedResourcesStatus") or ():
            health.setdefault(one.get("name", ""), []).extend(
                f"{each.get('resourceID')}: {each.get('health')}" for each in resource.get("resources") or ()
            )
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        claims = [one.get("name") for one in (container.get("resources") or {}).get("claims") or ()]
        if entries & set(claims):
            yield {
                "pod": pod["metadata"]["name"],
                "phase": status.get("phase"),
                "node": spec.get("nodeName"),
                "container": container.get("name", ""),
                "health": health.get(container.get("name", ""), []),
            }


def explanation(board: Board, kind: str, namespace: str, name: str) -> OutputDocument:
    """Return why a claim or pod fits or does not, node by node. Raises: InputError if there is none."""
    if kind not in {"claim", "pod"}:
        raise InputError("question", "`kind` must be claim or pod")
    world = board.snapshot()
    world.complete()
    subjects = subjects_of(world, [kind, name], namespace, lambda _namespace, _name: "", lambda _: True)
    explainer = SubjectExplainer(world, board.rules)
    explained = [advised(world, board.rules, one, explainer.explain(one)) for one in subjects]
    return explanations_document(explained, board.rules, is_one=True)


def _made_claims(pod: Wire) -> dict[str, str | None]:
    """Return the claims that were made for a pod, by the names of its entries in `resourceClaims`."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return {one["name"]: one.get("resourceClaimName") for one in made}


def _namespace(wire: Wire) -> str:
    return str(wire["metadata"].get("namespace") or "default")


def _key(wire: Wire) -> tuple[str, str]:
    return _namespace(wire), str(wire["metadata"]["name"])


# The page of one device of the map: its published facts, its possible partitions, and which claims hold it since
# when.

_MAX_HOLDERS = 200


def device_page(board: Board, node: str, device: DeviceId) -> OutputDocument:
    """Return the document of a device, or that of a GPU of which only parts are published.

    Raises: InputError if there is none.
    """
    driver, pool, name = device
    devices = _published(board, node, (driver, pool), name)
    holders = _holders_of(board, (driver, pool), name)
    if not devices and not holders:
        raise InputError("no-device", f"node {node} publishes no device {name}", hint="it may be gone: see the map")
    own: DeviceWire = next(
        (wire for wire in devices if wire["name"] == name), devices[0] if devices else {"name": name}
    )
    content = {
        "node": node,
        "driver": driver,
        "pool": pool,
        "device": name,
        "published": any(wire["name"] == name for wire in devices),
        "memory": memory_text(memory) if (memory := memory_of(own)) else None,
        "attributes": _attributes(own),
        "capacity": _capacity(own),
        "taints": _taints_of(devices)[:50],
        "placements": _placements(devices),
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


def _published(board: Board, node: str, pool: PoolId, name: str) -> list[DeviceWire]:
    """Return the device with a name, and the parts of it."""
    return [
        wire
        for one in board.slices_by_node().get(node, ())
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == pool
        for wire in one["spec"].get("devices") or ()
        if _is_of(wire["name"], name)
    ]


def _holders_of(board: Board, pool: PoolId, name: str) -> list[tuple[DeviceId, Holding]]:
    """Return which claims hold the device with a name, or a part of it."""
    return [
        (key, one) for key, several in board.held().get(pool, {}).items() if _is_of(key[2], name) for one in several
    ]


def _is_of(device: str, gpu: str) -> bool:
    return device == gpu or device.startswith((f"{gpu}-mig-", f"{gpu}-share-"))


def _taints_of(devices: Sequence[DeviceWire]) -> list[Wire]:
    """Return the taints of a GPU and its parts, each once with the time when the first of them got it."""
    found: dict[tuple[str, Any, str], Wire] = {}
    for taint in (taint for wire in devices for taint in wire.get("taints") or ()):
        key, value, effect = str(taint.get("key")), taint.get("value"), str(taint.get("effect"))
        known = found.setdefault((key, value, effect), {"key": key, "value": value, "effect": effect, "since": None})
        known["since"] = min(filter(None, (known["since"], taint.get("timeAdded"))), default=None)
    return list(found.values())


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


# The objects that are left out of a board, because they do not have the shape of their kind.

_MAX = 10_000  # of each kind; more are not counted


def key_of(wire: Any) -> Key | None:
    """Return the namespace and the name of an object; None if it has no name."""
    metadata = wire.get("metadata") if isinstance(wire, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = (metadata.get("namespace") or "") if isinstance(metadata, dict) else ""
    return (namespace, name) if isinstance(name, str) and name and isinstance(namespace, str) else None


class LeftOut:
    """The keys of all odd objects. An object without a name counts as one more."""

    def __init__(self) -> None:
        self._keys: dict[str, set[Key]] = {}

    def begin_list(self, kind: str, namespace: str) -> None:
        """Forget the objects of a kind in a namespace ("": in all), of which a new list begins."""
        kept = {key for key in self._keys.get(kind, ()) if namespace and key[0] != namespace}
        self._keys[kind] = kept

    def add(self, kind: str, namespace: str, key: Key | None) -> None:
        """Leave an object out; without a key, it is one of a list of a namespace."""
        keys = self._keys.setdefault(kind, set())
        if len(keys) < _MAX:
            keys.add(key or (namespace, f"?{len(keys)}"))

    def discard(self, kind: str, key: Key) -> None:
        """Count an object no longer: it has the shape of its kind now, or is gone."""
        self._keys.get(kind, set()).discard(key)

    def count(self, kind: str) -> int:
        """Return how many objects of a kind are left out."""
        return len(self._keys.get(kind, ()))
