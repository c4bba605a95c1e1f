"""Checks of ResourceSlices: whether they exist, belong to existing nodes, and are complete, current and correct.

Pure. In: `ClusterEvidence`, and `NodeEvidence` to compare them with the hardware. Out: findings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.inventory.device import Device
from dra_driver.inventory.wire import attribute_wire
from dra_driver.model.wire import DeviceWire, SliceWire, Wire
from dra_driver.plugin.other_drivers.device_plugin import allocatable_gpus

# Labels by which other software marks nodes with NVIDIA GPUs. Source: GPU feature discovery, node feature discovery.
# By default, node feature discovery puts the class of the PCI device before its vendor in the label.
_GPU_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
_GPU_LABEL = re.compile(r"feature\.node\.kubernetes\.io/pci-03[0-9a-f]{2}_10de\.present")
_PCI = "resource.kubernetes.io/pciBusID"
_OWNERS = ("uuid", "parentUUID")


def check_presence(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Compare the slices with the nodes that have GPUs, and with the nodes that exist."""
    if not cluster.has("slices"):
        return
    ours = _ours(cluster)
    # No slice is missing for GPUs that a device plugin serves: one cluster may have nodes of both kinds.
    wanted = [one["metadata"]["name"] for one in cluster.of("nodes") if has_gpus(one) and not allocatable_gpus(one)]
    if not ours:
        yield Finding(
            "slices-none", cluster.driver, "publishes no slice on any node",
            "GET resourceslices", "is the agent installed, and does it run on the GPU nodes? (docs/install.md)",
        )  # fmt: skip
    published = {one["spec"].get("nodeName") for one in ours}
    for name in wanted if ours else ():
        if name not in published:
            yield Finding(
                "slices-node-missing", f"node {name}", "has GPUs by its labels, but publishes none",
                "GET resourceslices", f"look at the agent's log on {name}, or run `dra-driver doctor` there",
            )  # fmt: skip
    known = {one["metadata"]["name"] for one in cluster.of("nodes")}
    for name in sorted({str(name) for name in published if name} - known) if cluster.has("nodes") else ():
        yield Finding(
            "slices-no-node", f"node {name}", "is gone, but its slices are not", "GET nodes",
            f"kubectl delete resourceslices --field-selector spec.nodeName={name}",
        )  # fmt: skip


def check_pools(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each incomplete pool and each pool with slices of older generations."""
    pools: defaultdict[str, list[Wire]] = defaultdict(list)
    for one in _ours(cluster):
        pools[one["spec"]["pool"]["name"]].append(one["spec"]["pool"])
    for name, found in sorted(pools.items()):
        newest = max(pool["generation"] for pool in found)
        current = [pool for pool in found if pool["generation"] == newest]
        if len(current) != current[0]["resourceSliceCount"]:
            yield Finding(
                "slices-incomplete", f"pool {name}",
                f"has {len(current)} of {current[0]['resourceSliceCount']} slices of generation {newest}",
                "GET resourceslices", "the agent corrects it within seconds; if it does not, look at its log",
            )  # fmt: skip
        if len(current) < len(found):
            yield Finding(
                "slices-stale", f"pool {name}",
                f"{len(found) - len(current)} slices are older than generation {newest}", "GET resourceslices",
                "the agent removes them within seconds; if it does not, look at its log",
            )  # fmt: skip


def check_against_hardware(cluster: ClusterEvidence, node: NodeEvidence) -> Iterator[Finding]:
    """Compare the devices that this node publishes with those that it has."""
    inventory, how = node.inventory, "this node's hardware beside GET resourceslices"
    published = devices_of(_ours(cluster), node.node)
    if inventory is None or inventory.waiting_for or not published:
        return
    remedy = "the agent corrects it within seconds; if it does not, look at its log"
    seen = {value for device in published.values() for value in identities(device)}
    for device in inventory.devices:
        gpu = device.gpu
        if device.name in published:
            if wrong := _differing(device, published[device.name]):
                yield Finding("slices-differ", device.name, f"differs in {', '.join(wrong)}", how, remedy)
        elif not {gpu.uuid, gpu.pci_address} & seen:
            yield Finding("slices-differ", device.name, "is here, but not published", how, remedy)
    here = {address for gpu in (node.facts.gpus if node.facts else ()) for address in (gpu.pci_address, gpu.uuid)}
    for name, wire in published.items():
        if (found := identities(wire)) and not found & here:
            yield Finding("slices-differ", name, "is published, but its GPU is not here", how, remedy)


def devices_of(slices: Iterable[SliceWire], node: str = "") -> dict[str, DeviceWire]:
    """Return the devices in the newest generation of each pool by name, of one node or (with "") of all."""
    chosen = [one["spec"] for one in slices if not node or one["spec"].get("nodeName") == node]
    newest: dict[str, int] = {}
    for spec in chosen:
        newest[spec["pool"]["name"]] = max(spec["pool"]["generation"], newest.get(spec["pool"]["name"], 0))
    current = [spec for spec in chosen if spec["pool"]["generation"] == newest[spec["pool"]["name"]]]
    return {device["name"]: device for spec in current for device in spec.get("devices") or ()}


def ours_by_pool(cluster: ClusterEvidence) -> dict[str, dict[str, DeviceWire]]:
    """Return this driver's devices by pool and name, in the newest generation of each pool."""
    pools: defaultdict[str, list[SliceWire]] = defaultdict(list)
    for one in _ours(cluster):
        pools[one["spec"]["pool"]["name"]].append(one)
    return {pool: devices_of(slices) for pool, slices in sorted(pools.items())}


def _ours(cluster: ClusterEvidence) -> list[SliceWire]:
    return [one for one in cluster.of("slices") if one["spec"].get("driver") == cluster.driver]


def has_gpus(node: Wire) -> bool:
    """Return whether a node has NVIDIA GPUs by the labels that other software puts on it."""
    labels = node["metadata"].get("labels") or {}
    return any(
        value == "true" and (name in _GPU_LABELS or _GPU_LABEL.fullmatch(name)) for name, value in labels.items()
    )


def identities(device: DeviceWire) -> frozenset[str]:
    """Return the values that identify a device's GPU: its PCI address, and its UUID or that of its parent."""
    attributes = device.get("attributes") or {}
    found = (_value(attributes[name]) for name in (_PCI, *_OWNERS) if name in attributes)
    return frozenset(str(value) for value in found if value)


def _differing(device: Device, wire: DeviceWire) -> list[str]:
    """Return the names of the attributes for which the hardware and the slice have different values."""
    attributes: Mapping[str, Any] = wire.get("attributes") or {}
    actual = {name: attribute_wire(value) for name, value in device.attributes.items()}
    return sorted(name for name, value in actual.items() if name in attributes and attributes[name] != value)


def _value(attribute: Mapping[str, Any]) -> Any:
    return next(iter(attribute.values()), None)
