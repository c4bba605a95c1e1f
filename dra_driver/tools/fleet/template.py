"""Template of a node: the slices of any machine of its kind, for an autoscaler that has no such node yet.

In: the slices of one node, live or of a profile. Out: the slices of a node called `TEMPLATE_NODE`, and the annotations
of a cluster-api node group. The template leaves out what differs between machines (UUIDs, serial numbers), what depends
on the image that a machine boots (driver versions), and what is temporary (taints).

Source: Cluster Autoscaler, cluster-api provider: annotations of a scalable resource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.capacity import Amount
from dra_driver.allocation.pools import DeviceRecord, counter_value
from dra_driver.allocation.usage import CounterName, summed_counter_amounts
from dra_driver.base.wire import Wire
from dra_driver.tools.world.access import DocumentKind, OutputDocument, UnseenObjects, plain, unseen_document
from dra_driver.tools.world.profiles import part_of

TEMPLATE_NODE = "template-node"
LEFT_OUT = frozenset(
    [
        *("uuid", "parentUUID", "uniqueID", "serial", "iommuGroup"),
        *("vbiosVersion", "driverVersion", "driverVersionFull", "cudaDriverVersion"),
    ]
)
# The kind of node determines which devices share such a value, but the value itself belongs to one machine.
_DOMAINS = ("nvlinkDomain", "fabricDomain")
_ANNOTATION = "capacity.cluster-autoscaler.kubernetes.io"


def node_template(slices: Sequence[Wire], node: str) -> list[Wire]:
    """Return the slices of a node as a template, of the newest generations only, in the order of their names."""
    newest: dict[str, int] = {}
    for slice_ in slices:
        pool = slice_["spec"]["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool.get("generation", 0))
    kept = [one for one in slices if one["spec"]["pool"].get("generation", 0) == newest[one["spec"]["pool"]["name"]]]
    domains: dict[str, str] = {}
    return [_slice(one, number, node, domains) for number, one in enumerate(sorted(kept, key=_name))]


def group_annotations(template: Sequence[Wire]) -> dict[str, str]:
    """Return the annotations of a cluster-api node group that is scaled to zero; none for a node without whole GPUs.

    Annotations can only state the number of whole GPUs of one driver: the driver with the most GPUs.
    """
    counts = Counter(
        one["spec"]["driver"]
        for one in template
        for device in one["spec"].get("devices") or ()
        if (device.get("attributes") or {}).get("type") == {"string": "gpu"}
    )
    return {
        name: value
        for driver, count in counts.most_common(1)
        for name, value in ((f"{_ANNOTATION}/dra-driver", driver), (f"{_ANNOTATION}/gpu-count", str(count)))
    }


def _name(one: Wire) -> tuple[str, str]:
    return one["spec"]["driver"], (one.get("metadata") or {}).get("name") or ""


def _slice(one: Wire, number: int, node: str, domains: dict[str, str]) -> Wire:
    spec: Wire = {**one["spec"], "nodeName": TEMPLATE_NODE}
    spec["pool"] = {**spec["pool"], "name": spec["pool"]["name"].replace(node, TEMPLATE_NODE, 1), "generation": 1}
    if "devices" in spec:
        spec["devices"] = [_device(device, domains) for device in spec["devices"]]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{TEMPLATE_NODE}-{spec['driver']}-{number}"},
        "spec": spec,
    }


def _device(device: Wire, domains: dict[str, str]) -> Wire:
    kept = {key: value for key, value in device.items() if key not in {"taints", "attributes"}}
    attributes: dict[str, Any] = {}
    for name, value in (device.get("attributes") or {}).items():
        own = name.rpartition("/")[2]
        if own in _DOMAINS and isinstance(value.get("string"), str):
            value = {"string": domains.setdefault(value["string"], f"{TEMPLATE_NODE}-{len(domains)}")}  # noqa: PLW2901
        if own not in LEFT_OUT:
            attributes[name] = value
    return {"name": kept.pop("name"), "attributes": attributes, **kept}


# The branches that make up the tree of a cluster, as values and as a document.


@dataclass(frozen=True, slots=True)
class BranchFlag:
    """Something that deserves a reader's attention; `code` is stable."""

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class Branch:
    """One line of the tree.

    `kind` is node, pool, set (the devices of one GPU), device, claim or pod, or file for a line that only people see.
    `text` is for people; `facts` are the same content for programs; `fill` is the fraction that is held, from 0 to 1.
    `like` lists further nodes whose subtrees are the same except for the nodes' own names.
    """

    kind: str
    name: str
    text: str = ""
    fill: float | None = None
    flags: tuple[BranchFlag, ...] = ()
    children: list[Branch] = field(default_factory=list)
    like: tuple[str, ...] = ()
    facts: Wire = field(default_factory=dict)


def has_flags(branches: Iterable[Branch]) -> bool:
    """Return whether any of the branches, or any branch below them, has a flag."""
    return any(branch.flags or has_flags(branch.children) for branch in branches)


def tree_document(kind: DocumentKind, branches: Sequence[Branch], more: Wire) -> OutputDocument:
    """Return the document of a tree: its branches, and the other content in `more`."""
    name = "nodes" if str(kind) == "SliceTree" else "claims"
    return OutputDocument(kind, {name: [branch_document(branch) for branch in branches], **more})


def branch_document(branch: Branch) -> Wire:
    """Return the document of a branch and of everything below it."""
    return {
        "kind": branch.kind,
        "name": branch.name,
        "like": list(branch.like),
        "heldFraction": None if branch.fill is None else round(branch.fill, 3),
        "flags": plain(branch.flags),
        "facts": branch.facts,
        "children": [branch_document(child) for child in branch.children],
    }


# What is left of the counters that the devices of a GPU share, and which devices still fit.

Amounts = dict[CounterName, Amount]


def counters_used(held: Iterable[DeviceRecord]) -> Amounts:
    """Return what held devices take from each counter."""
    used: Amounts = {}
    for device in held:
        _take(used, device)
    return used


def counters_left(sets: Iterable[Wire], used: Mapping[CounterName, Amount]) -> Amounts:
    """Return what is left of each counter of some sets."""
    return {
        (one["name"], name): counter_value(counter) - used.get((one["name"], name), 0)
        for one in sets
        for name, counter in (one.get("counters") or {}).items()
    }


def fits(device: DeviceRecord, left: Mapping[CounterName, Amount]) -> bool:
    """Return whether enough is left for what a device takes. Nothing is left of a counter that is not known."""
    return all(amount <= left.get(counter, 0) for counter, amount in summed_counter_amounts(device))


def partitions_left(free: Iterable[DeviceRecord], left: Mapping[CounterName, Amount]) -> dict[str, int]:
    """Return, by profile, how many of some free partitions could exist at once if no other profile were used."""
    by_profile: dict[str, list[DeviceRecord]] = {}
    for one in free:
        by_profile.setdefault(part_of(one.wire), []).append(one)
    return {profile: count for profile, devices in by_profile.items() if (count := _count_at_once(devices, left))}


def _count_at_once(devices: Iterable[DeviceRecord], left: Mapping[CounterName, Amount]) -> int:
    count, used = 0, Amounts()
    for device in devices:
        wanted = summed_counter_amounts(device)
        if all(amount + used.get(counter, 0) <= left.get(counter, 0) for counter, amount in wanted):
            count += 1
            _take(used, device)
    return count


def _take(used: Amounts, device: DeviceRecord) -> None:
    for counter, amount in summed_counter_amounts(device):
        used[counter] = used.get(counter, 0) + amount


# The claims that hold devices of one driver, with the pods that use them: as lines, and as a document.


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
    devices = ", ".join(f"{device['pool']}/{device['device']}" for device in holder["devices"])
    users = ", ".join(f"{one['resource']} {one['name']}" for one in holder["usedBy"])
    return f"claim {holder['namespace']}/{holder['name']}: {devices}; used by {users or 'no pod'}"


def holders_document(found: Sequence[Wire], driver: str, unseen: Sequence[UnseenObjects]) -> OutputDocument:
    """Return the document of the claims that were found, and of the objects that may not be read."""
    content = {"driver": driver, "claims": list(found), "unseen": unseen_document(unseen)}
    return OutputDocument(DocumentKind.CLAIMS_IN_USE, content)
