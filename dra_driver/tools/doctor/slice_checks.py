"""Checks of DeviceClasses: whether they match devices, and only this driver's, and whether their selectors work.

Pure. In: `ClusterEvidence`. Out: findings. A class is checked if it names this driver, matches one of its devices, or
is named by a claim; a class that a claim names but that does not exist is a finding, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.versions import nearest_version
from dra_driver.base.wire import ClassWire, DeviceWire, SliceWire, Wire
from dra_driver.node.devices.describing import Device, attribute_wire
from dra_driver.node.neighbours.device_plugin import allocatable_gpus
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.kubernetes import KubernetesEngine, KubernetesSelector
from dra_driver.tools.doctor.evidence import ClusterEvidence
from dra_driver.tools.doctor.finding import Finding
from dra_driver.tools.doctor.node_evidence import NodeEvidence

# Checks of ResourceSlices: whether they exist, belong to existing nodes, and are complete, current and correct.

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
    wanted = [node["metadata"]["name"] for node in cluster.of("nodes") if has_gpus(node) and not allocatable_gpus(node)]
    if not ours:
        yield Finding(
            "slices-none", cluster.driver, "publishes no slice on any node",
            "GET resourceslices", "is the agent installed, and does it run on the GPU nodes? (docs/install.md)",
        )  # fmt: skip
    published = {slice_["spec"].get("nodeName") for slice_ in ours}
    for name in wanted if ours else ():
        if name not in published:
            yield Finding(
                "slices-node-missing", f"node {name}", "has GPUs by its labels, but publishes none",
                "GET resourceslices", f"look at the agent's log on {name}, or run `dra-driver doctor` there",
            )  # fmt: skip
    known = {node["metadata"]["name"] for node in cluster.of("nodes")}
    for name in sorted({str(name) for name in published if name} - known) if cluster.has("nodes") else ():
        yield Finding(
            "slices-no-node", f"node {name}", "is gone, but its slices are not", "GET nodes",
            f"kubectl delete resourceslices --field-selector spec.nodeName={name}",
        )  # fmt: skip


def check_pools(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each incomplete pool and each pool with slices of older generations."""
    pools: defaultdict[str, list[Wire]] = defaultdict(list)
    for slice_ in _ours(cluster):
        pools[slice_["spec"]["pool"]["name"]].append(slice_["spec"]["pool"])
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
    published = {name: device for (_, name), device in devices_of(_ours(cluster), node.node).items()}
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


PooledDevice = tuple[str, str]
"""The pool and the name of a device. A name alone means nothing: equal machines have devices of equal names."""


def devices_of(slices: Iterable[SliceWire], node: str = "") -> dict[PooledDevice, DeviceWire]:
    """Return one driver's devices in the newest generation of each pool, of one node or (with "") of all."""
    chosen = [slice_["spec"] for slice_ in slices if not node or slice_["spec"].get("nodeName") == node]
    newest: dict[str, int] = {}
    for spec in chosen:
        newest[spec["pool"]["name"]] = max(spec["pool"]["generation"], newest.get(spec["pool"]["name"], 0))
    current = [spec for spec in chosen if spec["pool"]["generation"] == newest[spec["pool"]["name"]]]
    return {(spec["pool"]["name"], device["name"]): device for spec in current for device in spec.get("devices") or ()}


def ours_by_pool(cluster: ClusterEvidence) -> dict[str, dict[str, DeviceWire]]:
    """Return this driver's devices by pool and name, in the newest generation of each pool."""
    pools: defaultdict[str, dict[str, DeviceWire]] = defaultdict(dict)
    for (pool, name), device in sorted(devices_of(_ours(cluster)).items()):
        pools[pool][name] = device
    return pools


def _ours(cluster: ClusterEvidence) -> list[SliceWire]:
    return [slice_ for slice_ in cluster.of("slices") if slice_["spec"].get("driver") == cluster.driver]


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


@dataclass(slots=True)
class _SelectorVerdict:
    """How many devices a class matches, by driver; `fault` is Kubernetes' message about the first failing selector."""

    matches: dict[str, int] = field(default_factory=dict)
    fault: str = ""


def check_classes(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Evaluate every class on every published device, and yield what is wrong with the classes."""
    if not cluster.has("classes", "slices"):
        return
    fleet = {driver: devices_of(slices) for driver, slices in _by_driver(cluster).items()}
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    wanted = _wanted(cluster)
    for device_class in cluster.of("classes"):
        wanted_by = wanted.pop(device_class["metadata"]["name"], "")
        if fleet.get(cluster.driver):  # if this driver publishes no device at all, another check reports that
            yield from _findings(cluster.driver, device_class, _verdict(engine, device_class, fleet), wanted_by)
    for name, claim in sorted(wanted.items()):
        yield Finding(
            "class-missing", f"class {name}", f"is named by {claim}, but does not exist", "GET deviceclasses",
            "install it: the chart's classes are in deviceclasses/; kubectl get deviceclasses lists the existing ones",
        )  # fmt: skip


def _findings(driver: str, one: ClassWire, verdict: _SelectorVerdict, wanted_by: str) -> Iterator[Finding]:
    subject, how = f"class {one['metadata']['name']}", "its selectors, evaluated on every published device"
    is_ours = any(driver in expression for expression in _expressions(one))
    others = {name: count for name, count in verdict.matches.items() if name != driver}
    if verdict.fault and (is_ours or wanted_by):
        remedy = "guard the attribute with `in` or has(), or correct the expression: dra-driver cel lint"
        yield Finding("class-broken", subject, verdict.fault, how, remedy)
    elif not verdict.matches and (is_ours or wanted_by):
        code = "class-wanted-no-match" if wanted_by else "class-no-match"
        what = f"matches no device, and {wanted_by} asks for it" if wanted_by else "matches no device"
        yield Finding(code, subject, what, how, _how_to_see(one))
    elif others and driver in verdict.matches:
        listed = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
        remedy = f'begin its expression with device.driver == "{driver}" &&'
        yield Finding("class-foreign", subject, f"also matches {listed}", how, remedy)


def _how_to_see(one: ClassWire) -> str:
    name = one["metadata"]["name"]
    return f"kubectl get deviceclass {name} -o yaml | dra-driver cel explain --cluster - shows why"


def check_claim_selectors(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting claim or template with a selector that fails on a device.

    Such a failure ends the scheduling of the pod.
    """
    if not cluster.has("classes", "slices"):
        return
    fleet = {driver: devices_of(slices) for driver, slices in _by_driver(cluster).items()}
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    classes = {device_class["metadata"]["name"]: _expressions(device_class) for device_class in cluster.of("classes")}
    for kind, wire, spec in _asking(cluster):
        faults = [fault for part in _parts(spec) if (fault := _fault_of(engine, part, classes, fleet))]
        if faults:
            yield Finding(
                "claim-selector-aborts", f"{kind} {wire['metadata'].get('namespace')}/{wire['metadata']['name']}",
                f"its selector {faults[0]}, which ends the scheduling of its pods on every node",
                "its selectors, evaluated on every published device that the class matches",
                "guard the attribute with `in` or has(), or correct the expression: dra-driver cel lint",
            )  # fmt: skip


def _fault_of(
    engine: KubernetesEngine,
    part: Wire,
    classes: Mapping[str, list[str]],
    fleet: Mapping[str, Mapping[PooledDevice, DeviceWire]],
) -> str:
    """Return how a request's own selectors fail on devices of its class; "" if they work or the class itself fails."""
    of_class = classes.get(part.get("deviceClassName") or "", [])
    if not part.get("selectors") or _verdict(engine, {"spec": {"selectors": _wires(of_class)}}, fleet).fault:
        return ""
    own = [selector["cel"]["expression"] for selector in part["selectors"] if selector.get("cel")]
    return _verdict(engine, {"spec": {"selectors": _wires([*of_class, *own])}}, fleet).fault


def _wires(expressions: list[str]) -> list[Wire]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def _verdict(
    engine: KubernetesEngine, one: ClassWire, fleet: Mapping[str, Mapping[PooledDevice, DeviceWire]]
) -> _SelectorVerdict:
    verdict = _SelectorVerdict()
    try:
        selectors = [engine.compile(expression) for expression in _expressions(one)]
    except SelectorCompileError as error:
        verdict.fault = error.text
        return verdict
    for driver, devices in fleet.items():
        for place, device in devices.items():
            try:
                if _matches(selectors, device, driver):
                    verdict.matches[driver] = verdict.matches.get(driver, 0) + 1
            except SelectorRuntimeError as error:
                verdict.fault = verdict.fault or f"fails on {driver} device {'/'.join(place)}: {error.text}"
    return verdict


def matching_devices(cluster: ClusterEvidence, one: ClassWire, devices: Iterable[DeviceWire]) -> Iterator[DeviceWire]:
    """Yield those of the driver's devices that a class matches; none if its selectors do not work."""
    engine = KubernetesEngine(nearest_version(cluster.version.minor))
    try:
        selectors = [engine.compile(expression) for expression in _expressions(one)]
    except SelectorCompileError:
        return
    for device in devices:
        with suppress(SelectorRuntimeError):
            if _matches(selectors, device, cluster.driver):
                yield device


def _matches(selectors: list[KubernetesSelector], device: DeviceWire, driver: str) -> bool:
    return all(selector.matches(device, driver) for selector in selectors)


def _by_driver(cluster: ClusterEvidence) -> dict[str, list[Wire]]:
    found: dict[str, list[Wire]] = {}
    for slice_ in cluster.of("slices"):
        found.setdefault(slice_["spec"]["driver"], []).append(slice_)
    return found


def _wanted(cluster: ClusterEvidence) -> dict[str, str]:
    """Return for each class one object that asks for it: a template, or a claim that is not allocated yet."""
    wanted: dict[str, str] = {}
    for kind, wire, spec in _asking(cluster):
        for part in _parts(spec):
            if name := part.get("deviceClassName"):
                wanted[name] = f"{kind} {wire['metadata'].get('namespace')}/{wire['metadata']['name']}"
    return wanted


def _asking(cluster: ClusterEvidence) -> Iterator[tuple[str, Wire, Wire]]:
    """Yield templates, and claims that are not allocated yet, each with the spec of the claim."""
    for one in cluster.of("templates"):
        yield "template", one, one["spec"].get("spec") or {}
    for one in cluster.of("claims"):
        if not (one.get("status") or {}).get("allocation"):
            yield "claim", one, one["spec"]


def _parts(spec: Wire) -> Iterator[Wire]:
    """Yield what a claim asks for: each request, and each alternative of a request."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        yield from (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))


def _expressions(one: ClassWire) -> list[str]:
    selectors = (one.get("spec") or {}).get("selectors") or ()
    return [selector["cel"]["expression"] for selector in selectors if selector.get("cel")]
