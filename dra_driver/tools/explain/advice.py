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
from difflib import get_close_matches
from itertools import islice

from dra_driver.allocation.explanation import AllocationExplanation
from dra_driver.allocation.moves import ClusterState, JobMove, fewest_moves
from dra_driver.allocation.simulation import Job
from dra_driver.base.errors import InputError
from dra_driver.base.names import NVIDIA_DRIVER, gpu_of_device
from dra_driver.base.versions import Semver, minor_of
from dra_driver.base.wire import DeviceWire, ShareMode, Wire
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.simulated.models import Model, Placement, model_names, read_model
from dra_driver.hardware.simulated.profile import Profile, SimulatedGpu
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.devices.geometry import WantedGeometry, is_geometry, wanted_of
from dra_driver.node.devices.offering import Inventory, KeptFields
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.devices.rules import MAX_REPLICAS, SharingRule, SharingRules
from dra_driver.node.slices.layout import SliceSpec, lay_out
from dra_driver.selectors.advice.lint import guarded_remedy
from dra_driver.selectors.check.declarations import SELECTOR_GATES
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.explain.explanations import ExplainedSubject
from dra_driver.tools.explain.scenario import running_jobs
from dra_driver.tools.webhook.review import CudaRequirement, cuda_requirements
from dra_driver.tools.world.profiles import attribute_of, string_of
from dra_driver.tools.world.world import PARTITIONS, AppliedRules, World

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
    ours = [slice_ for slice_ in slices if slice_["spec"]["driver"] == NVIDIA_DRIVER]
    gpus = tuple(_gpus(node, [wire for slice_ in ours for wire in slice_["spec"].get("devices") or ()]))
    if not gpus:
        raise InputError("recut", f"node {node} publishes no GPU of {NVIDIA_DRIVER}")
    inventory = _changed(Profile(node, node, gpus, node, _version(ours, "driverVersion")), node, change)
    offered = inventory.offering.for_server(_kept(rules))
    sets = [counter_set_wire(name, counters) for name, counters in offered.counter_sets.items()]
    devices = [device_wire(device) for device in offered.devices]
    minor = minor_of(rules.kubernetes)
    pool = ours[0]["spec"]["pool"]
    made = lay_out(devices, pool=pool["name"], node=node, driver=NVIDIA_DRIVER, server_minor=minor, counter_sets=sets)
    others = tuple(slice_ for slice_ in slices if slice_["spec"]["driver"] != NVIDIA_DRIVER)
    generation = max(slice_["spec"]["pool"]["generation"] for slice_ in ours) + 1
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
    found = [read_model(name, []) for name in model_names()]
    return {one.product_name: one for one in found}


def _known(text: str) -> str | None:
    return None if text in {"", "-"} else text


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 5 else None


def _version(slices: Sequence[Wire], name: str) -> str | None:
    """Return an attribute of a node's first device, for attributes that are equal for all devices of a node."""
    first = next((wire for slice_ in slices for wire in slice_["spec"].get("devices") or ()), None)
    return _known(attribute_of(first, name)) if first is not None else None


# Advice on room: which running pods would have to move so that a subject that fits nowhere would fit.

_MAX_TRIES = 100


def capacity_advice(world: World, rules: AppliedRules, subject: ExplainedSubject) -> Iterator[str]:
    """Yield where a subject would fit, and which pods would first have to move where."""
    running = running_jobs(world)
    if not running:
        return
    state = ClusterState(
        nodes=world.of("Node"),
        slices=world.of("ResourceSlice"),
        classes=world.of("DeviceClass"),
        held=world.allocated(),
        kubernetes=rules.kubernetes,
        gates=rules.gates,
    )
    job = Job(subject.name, (*subject.claims, *subject.allocated), subject.pod)
    found = fewest_moves(state, running, job, subject.allocated, max_tries=_MAX_TRIES)
    if found is not None:
        yield f"would fit on {found.node} if {'; '.join(map(_elsewhere, found.moves))}"


def _elsewhere(move: JobMove) -> str:
    place = f" on {move.target}" if move.target != move.source else ""
    return f"{move.job} were not on {', '.join(move.leaves)} but on {', '.join(move.gets)}{place}"


# Advice on CUDA: devices that a pod may get although their driver is older than its images need.


def cuda_advice(
    world: World, engine: KubernetesEngine, subject: ExplainedSubject, views: list[DeviceView]
) -> Iterator[str]:
    """Yield two sentences for each requirement that some devices do not meet: the lack, and the selector to add."""
    metadata = [{"metadata": claim["metadata"]} for claim in subject.claims]
    needs = [need for wire in ([subject.pod] if subject.pod else []) + metadata for need in cuda_requirements(wire)]
    if not needs:
        return
    for claim in subject.claims:
        for request in claim["spec"].get("devices", {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                reached = [view for view in views if one and _passes(world, engine, one, view)]
                for need in needs:
                    yield from _sentences(need, request["name"], reached)


def _sentences(need: CudaRequirement, request: str, reached: list[DeviceView]) -> Iterator[str]:
    served = [(view, _versions(view)) for view in reached]
    known = [(cuda, driver) for _, (cuda, driver) in served if cuda is not None]
    old = [cuda for cuda, driver in known if not need.is_met_by(cuda, driver)]
    if old:
        yield (
            f"{need.stated_by} needs CUDA {need.version}: {len(old)} of {len(reached)} devices that request {request} "
            f"may get have a driver that supports less (the oldest CUDA {min(old)})"
        )
        yield f"add to its selectors: {need.selector}"


def _versions(view: DeviceView) -> tuple[Semver | None, Semver | None]:
    """Return the CUDA version that a device's driver supports, and the driver's own version; None if unknown."""
    held = view.attributes.get(NVIDIA_DRIVER) or {}
    cuda, driver = held.get("cudaDriverVersion"), held.get("driverVersion")
    return cuda if isinstance(cuda, Semver) else None, driver if isinstance(driver, Semver) else None


def _passes(world: World, engine: KubernetesEngine, request: Wire, view: DeviceView) -> bool:
    """Return whether a request's class and selectors accept a device."""
    name = request.get("deviceClassName")
    wire: Wire = next((one for one in world.of("DeviceClass") if one["metadata"]["name"] == name), {})
    selectors = [*((wire.get("spec") or {}).get("selectors") or ()), *(request.get("selectors") or ())]
    try:
        return all(engine.compile(selector["cel"]["expression"]).matches_view(view) for selector in selectors)
    except (SelectorCompileError, SelectorRuntimeError):
        return False


# Advice for a claim that fits nowhere: what is wrong with its selectors, and what to write instead.

WRITE = "write: "  # what follows is an expression to copy
_MAX_VIEWS = 2_000  # devices that are examined for the names and values that the author may have meant


def advised(
    world: World, rules: AppliedRules, subject: ExplainedSubject, explanation: AllocationExplanation | None
) -> tuple[ExplainedSubject, AllocationExplanation | None]:
    """Add advice to the notes of a subject: on selectors and room if it fits nowhere, and on the CUDA that it needs."""
    if explanation is None:
        return subject, explanation
    gates = {name: on for name, on in rules.gates.items() if name in SELECTOR_GATES}
    engine = KubernetesEngine(rules.kubernetes, gates=gates)
    views = list(islice(_views(world), _MAX_VIEWS))
    notes: tuple[str, ...] = ()
    if not explanation.ok:
        notes = (
            *class_advice(world, subject),
            *selector_advice(world, engine, subject, views),
            *capacity_advice(world, rules, subject),
        )
    notes = (*subject.notes, *notes, *dict.fromkeys(cuda_advice(world, engine, subject, views)))
    return replace(subject, notes=notes), explanation


def selector_advice(
    world: World, engine: KubernetesEngine, subject: ExplainedSubject, views: list[DeviceView]
) -> tuple[str, ...]:
    """Return what to write instead in the selectors of a subject's claims; () if there is no remedy."""
    found: list[str] = []
    for label, class_name, expression in _expressions(subject):
        reached = [view for view in views if _class_accepts(world, class_name, engine, view)]
        remedy = guarded_remedy(expression, engine, reached or views)
        if remedy is not None:
            found.append(f"{label}: {'; '.join(remedy.sentences)}")
            found += [f"{WRITE}{remedy.better}"] if remedy.better else []
    return tuple(dict.fromkeys(found))


def class_advice(world: World, subject: ExplainedSubject) -> tuple[str, ...]:
    """Return a sentence for each class of a subject's claims that does not exist, with the most similar name."""
    known = [one["metadata"]["name"] for one in world.of("DeviceClass")]
    found: dict[str, str] = {}
    for claim in subject.claims:
        for request in (claim["spec"].get("devices") or {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                name = (one or {}).get("deviceClassName")
                if name and name not in known:
                    near = get_close_matches(name, known, n=1)
                    meant = f": did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known)[:8])}"
                    found[name] = f"there is no DeviceClass {name}{meant}"
    return tuple(found.values())


def _views(world: World) -> Iterator[DeviceView]:
    for one in world.of("ResourceSlice"):
        for device in one["spec"].get("devices") or ():
            yield prepare_device(device, one["spec"]["driver"])


def _expressions(subject: ExplainedSubject) -> Iterator[tuple[str, str, str]]:
    """Yield each selector of the claims: its place, the class of its request, and its text."""
    for claim in subject.claims:
        for request in claim["spec"].get("devices", {}).get("requests") or ():
            for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                for number, selector in enumerate((one or {}).get("selectors") or ()):
                    name = request["name"] if one is request.get("exactly") else f"{request['name']}/{one['name']}"
                    label = f"claim {claim['metadata']['name']}, request {name}, selector #{number}"
                    if expression := (selector.get("cel") or {}).get("expression"):
                        yield label, one["deviceClassName"], expression


def _class_accepts(world: World, class_name: str, engine: KubernetesEngine, view: DeviceView) -> bool:
    """Return whether a class accepts a device. A class that is missing, or whose selectors fail, accepts none."""
    wire: Wire = next((one for one in world.of("DeviceClass") if one["metadata"]["name"] == class_name), {})
    try:
        return all(
            engine.compile(selector["cel"]["expression"]).matches_view(view)
            for selector in (wire.get("spec") or {}).get("selectors") or ()
        )
    except (SelectorCompileError, SelectorRuntimeError):
        return False
