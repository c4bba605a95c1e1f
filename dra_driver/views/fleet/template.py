"""Template of a node: the slices of any machine of its kind, for an autoscaler that has no such node yet.

In: the slices of one node, live or of a profile. Out: the slices of a node called `TEMPLATE_NODE`, and the annotations
of a cluster-api node group. The template leaves out what differs between machines (UUIDs, serial numbers), what depends
on the image that a machine boots (driver versions), and what is temporary (taints).

Source: Cluster Autoscaler, cluster-api provider: annotations of a scalable resource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dra_driver.model.wire import Wire

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
    for one in slices:
        pool = one["spec"]["pool"]
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
