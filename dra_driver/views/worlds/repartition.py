"""The slices that a node's agent would publish if the node's GPUs were partitioned or shared in another way.

In: the slices of a node, and a change: a MIG geometry (`all-1g.10gb`, `all-balanced`, `all-disabled`,
`1g.10gb=4,3g.40gb=1`), `on-demand`, or `shares:N`. Out: its slices after the change. GPUs keep their PCI addresses,
NUMA nodes and links; everything else comes from the shipped model with the same product name, and identifiers such as
UUIDs are invented.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.controller.layout import SliceSpec, lay_out
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.simulated.mig import Placement
from dra_driver.hardware.simulated.models import Model, model_names, read_model
from dra_driver.hardware.simulated.profile import Profile, SimulatedGpu
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.mig.geometry import WantedGeometry, is_geometry, wanted_of
from dra_driver.inventory.mig.partitions import MigPolicy
from dra_driver.inventory.offering import Inventory, KeptFields
from dra_driver.inventory.sharing.rules import MAX_REPLICAS, SharingRule, SharingRules
from dra_driver.inventory.wire import counter_set_wire, device_wire
from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import minor_of
from dra_driver.model.names import NVIDIA_DRIVER, gpu_of_device
from dra_driver.model.shares import ShareMode
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.views.fleet.device_facts import attribute_of, string_of
from dra_driver.views.worlds.rules import PARTITIONS, AppliedRules

ON_DEMAND = "on-demand"
_SHARES = re.compile(r"shares:([0-9]{1,3})")
_ADDRESS = re.compile(r"gpu-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])")


def is_change(text: str) -> bool:
    """Return whether a text is a way to partition or share GPUs, as in the module's header."""
    return text == ON_DEMAND or _SHARES.fullmatch(text) is not None or is_geometry(text, {})


def repartitioned_slices(node: str, slices: Sequence[Wire], change: str, rules: AppliedRules) -> tuple[Wire, ...]:
    """Return the slices of a node after a change, as an API server with these rules stores them.

    The slices of other drivers are not changed. Raises: InputError for a change that the GPUs can't have, or for GPUs
    that no shipped model describes.
    """
    ours = [one for one in slices if one["spec"]["driver"] == NVIDIA_DRIVER]
    gpus = tuple(_gpus(node, [wire for one in ours for wire in one["spec"].get("devices") or ()]))
    if not gpus:
        raise InputError("recut", f"node {node} publishes no GPU of {NVIDIA_DRIVER}")
    inventory = _changed(Profile(node, node, gpus, node, _version(ours, "driverVersion")), node, change)
    offered = inventory.offering.for_server(_kept(rules))
    sets = [counter_set_wire(name, counters) for name, counters in offered.counter_sets.items()]
    devices = [device_wire(one) for one in offered.devices]
    minor = minor_of(rules.kubernetes)
    pool = ours[0]["spec"]["pool"]
    made = lay_out(devices, pool=pool["name"], node=node, driver=NVIDIA_DRIVER, server_minor=minor, counter_sets=sets)
    others = tuple(one for one in slices if one["spec"]["driver"] != NVIDIA_DRIVER)
    generation = max(one["spec"]["pool"]["generation"] for one in ours) + 1
    of_pool = {"name": pool["name"], "generation": generation, "resourceSliceCount": len(made)}
    return (*others, *(_slice(node, number, of_pool, one) for number, one in enumerate(made)))


def _kept(rules: AppliedRules) -> KeptFields:
    return KeptFields(
        counters=rules.is_on(PARTITIONS),
        taints=rules.is_on("DRADeviceTaints"),
        shares=rules.is_on("DRAConsumableCapacity"),
    )


def _slice(node: str, number: int, pool: Wire, one: SliceSpec) -> Wire:
    spec: Wire = {"driver": NVIDIA_DRIVER, "nodeName": node, "pool": pool}
    if one.devices:
        spec["devices"] = list(one.devices)
    if one.counter_sets:
        spec["sharedCounters"] = list(one.counter_sets)
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-changed-{number}"}, "spec": spec}


def _changed(profile: Profile, node: str, change: str) -> Inventory:
    """Return what the node would offer. Raises: InputError."""
    if change == ON_DEMAND:
        return build_inventory(facts_of(profile, node), MigPolicy(is_dynamic=True))
    shares = _SHARES.fullmatch(change)
    if shares is not None:
        count = int(shares[1])
        if not 2 <= count <= MAX_REPLICAS:
            raise InputError("recut", f"{change}: a GPU can have 2 to {MAX_REPLICAS} shares")
        rules = SharingRules((SharingRule("what-if", mode=ShareMode.REPLICAS, replicas=count),), node)
        return build_inventory(facts_of(profile, node), sharing=rules)
    gpus = tuple(
        _partitioned(gpu, facts, number, change)
        for number, (gpu, facts) in enumerate(zip(profile.gpus, facts_of(profile, node).gpus, strict=True))
    )
    return build_inventory(facts_of(replace(profile, gpus=gpus), node))


def _partitioned(gpu: SimulatedGpu, facts: GpuFacts, number: int, change: str) -> SimulatedGpu:
    wanted = wanted_of(facts, number, change, {})
    if not isinstance(wanted, WantedGeometry):
        raise InputError("recut", f"{change} on {gpu.pci_address}, {gpu.model.product_name}: {wanted}")
    if not wanted.is_enabled or gpu.model.mig is None:
        return replace(gpu, mig=None)
    found = [(gpu.model.mig.profile(placement.profile.name), placement.start) for placement in wanted.placements]
    return replace(gpu, mig=tuple(Placement(profile, start) for profile, start in found if profile is not None))


def _gpus(node: str, devices: Sequence[DeviceWire]) -> Iterator[SimulatedGpu]:
    """Yield the GPUs to which devices belong, in the order of their addresses. Raises: InputError."""
    by_name: dict[str, DeviceWire] = {}
    for wire in devices:
        name = gpu_of_device(wire["name"])
        if name == wire["name"] or name not in by_name:
            by_name[name] = wire
    models = _models()
    for number, name in enumerate(sorted(by_name)):
        wire, address = by_name[name], _ADDRESS.fullmatch(name)
        product = string_of(wire, "productName") or ""
        if address is None or product not in models:
            known = "no shipped model has its product name" if address else "its name contains no PCI address"
            raise InputError("recut", f"{name} on {node}, {product or 'of an unknown product'}: {known}")
        yield SimulatedGpu(
            "{}:{}:{}.{}".format(*address.groups()),
            number,
            models[product],
            numa_node=_number(attribute_of(wire, "numaNode")),
            pcie_root=_known(attribute_of(wire, "pcieRoot")),
            nvlink_group=_known(attribute_of(wire, "nvlinkDomain")),
        )


def _models() -> Mapping[str, Model]:
    """Return the shipped models by their product names."""
    found = [read_model(name, []) for name in model_names()]
    return {one.product_name: one for one in found}


def _known(text: str) -> str | None:
    return None if text in {"", "-"} else text


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 5 else None


def _version(slices: Sequence[Wire], name: str) -> str | None:
    """Return an attribute of a node's first device, for attributes that are equal for all devices of a node."""
    first = next((wire for one in slices for wire in one["spec"].get("devices") or ()), None)
    return _known(attribute_of(first, name)) if first is not None else None
