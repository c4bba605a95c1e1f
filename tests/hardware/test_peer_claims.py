"""Claims as the vendors' own drivers document them, judged against our slices of their machines.

The shapes are those of the examples and pages of NVIDIA's, AMD's and Intel's drivers, written down in our own words:
which class, which selector, how many devices, which constraint. A row says how many devices such a claim gets on a
machine; 0 means that none matches. A selector must never be an error: it would block the pod on every node.

Source: kubernetes-sigs/dra-driver-nvidia-gpu, demo/specs; ROCm/k8s-gpu-dra-driver, example and docs/driver-attributes;
intel/intel-resource-drivers-for-kubernetes, deployments and doc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.explanation import explain
from dra_driver.base.wire import Wire
from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.gaudi.vendor import GaudiHardware
from dra_driver.hardware.intel.vendor import IntelHardware
from dra_driver.hardware.port import Hardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.slices.layout import lay_out
from dra_driver.simulator.scheduler import ClaimOutcome, place
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.drawn_machines import CAPTURES, machine
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree
from tests.support.slices import slices as profile_slices

CLASSES = [
    yaml.safe_load(path.read_text()) for path in Path(__file__).parents[2].glob("deploy/helm/deviceclasses/*.yaml")
]
DRIVERS = {"amd": "gpu.amd.com", "intel": "gpu.intel.com", "gaudi": "gaudi.intel.com"}
AMD, INTEL, GAUDI, NVIDIA = (f'device.attributes["{one}"]' for one in (*DRIVERS.values(), "gpu.nvidia.com"))
AMD_SIZE, INTEL_SIZE, NVIDIA_SIZE = (
    f'device.capacity["{one}"].memory' for one in ("gpu.amd.com", "gpu.intel.com", "gpu.nvidia.com")
)


@dataclass(frozen=True)
class Shape:
    """One request: its class, selectors, number (0 for all devices), and what the claim adds to it."""

    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    copies: int = 1  # requests of this form in the claim
    same: str = ""  # the attribute that the devices have in common
    different: str = ""  # the attribute in which they differ
    is_admin: bool = False
    partitions: str = ""  # the amount of this capacity that is requested

    @property
    def claim(self) -> Wire:
        exactly: Wire = {"deviceClassName": self.device_class}
        exactly |= {"allocationMode": "ExactCount", "count": self.count} if self.count else {"allocationMode": "All"}
        exactly |= {"adminAccess": True} if self.is_admin else {}
        exactly |= {"capacity": {"requests": {"partitions": self.partitions}}} if self.partitions else {}
        if self.selectors:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in self.selectors]
        devices: Wire = {"requests": [{"name": f"r{n}", "exactly": exactly} for n in range(self.copies)]}
        constraint = {"matchAttribute": self.same} if self.same else {"distinctAttribute": self.different}
        devices |= {"constraints": [constraint]} if self.same or self.different else {}
        return {"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": devices}}


def of(device_class: str, *selectors: str, **more: object) -> Shape:
    return replace(Shape(device_class, selectors), **more)  # type: ignore[arg-type]


def slices_of(hardware: Hardware) -> list[Wire]:
    offering = build_inventory(hardware.discover()).offering
    driver = DRIVERS[hardware.vendor]
    sets = [counter_set_wire(*one) for one in offering.counter_sets.items()]
    devices = map(device_wire, offering.devices)
    specs = lay_out(devices, pool=f"n/{driver}", node="n", driver=driver, server_minor=36, counter_sets=sets)
    return [{"metadata": {"name": f"s{n}"}, "spec": spec.wire(1, len(specs))} for n, spec in enumerate(specs)]


def judged(claim: Wire, slices: list[Wire], *held: str) -> ClaimOutcome:
    """Return what the scheduler decides, while another claim holds the devices of these names."""
    spec = slices[0]["spec"]
    results = [{"request": "x", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": one} for one in held]
    other = {"metadata": {"name": "other"}, "status": {"allocation": {"devices": {"results": results}}}}
    (outcome,) = place([claim], slices=slices, classes=CLASSES, held=[other], node="n", kubernetes="1.36")
    return outcome


def refused(claim: Wire, slices: list[Wire]) -> str:
    allocator = Allocator(slices=slices, classes=CLASSES, allocated=[], kubernetes="1.36")
    return explain(allocator, [claim], [{"metadata": {"name": "n"}}]).sentence


def taken(outcome: ClaimOutcome) -> int:
    if "exceeds the claim limit of 32" in outcome.refusal:
        return TOO_MANY
    assert not outcome.aborts, outcome.refusal
    return len(outcome.allocation["devices"]["results"]) if outcome.allocation else 0


TOO_MANY = -1  # devices for one claim, by the rules of Kubernetes
BUS, ROOT = "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot"
PART, WHOLE = f'{AMD}.type == "amdgpu-partition"', f'{AMD}.type == "amdgpu"'
GUARDED = (
    'cel.bind(cap, device.capacity["gpu.amd.com"], has(cap.memory) && cap.memory.compareTo(quantity("16Gi")) >= 0)'
)
AMD_SHAPES = {
    "any": of("gpu.amd.com"),
    "whole": of("gpu.amd.com", WHOLE),
    "part": of("gpu.amd.com", PART),
    "all": of("gpu.amd.com", count=0, is_admin=True),
    "same GPU": of("gpu.amd.com", PART, copies=2, same=BUS),
    "same model": of("gpu.amd.com", PART, copies=2, same="gpu.amd.com/deviceID"),
    "other GPUs": of("gpu.amd.com", PART, copies=2, different=BUS),
    "four on one NUMA node": of("gpu.amd.com", copies=4, same="gpu.amd.com/numaNode"),
    "on NUMA node 0": of("gpu.amd.com", f"{AMD}.numaNode == 0"),
    "16 GiB": of("gpu.amd.com", f'{AMD_SIZE}.compareTo(quantity("16Gi")) >= 0'),
    "16 GiB, guarded": of("gpu.amd.com", GUARDED),
    "class of whole GPUs": of("gpu.amd.com-spx"),
    # The page says that the class for these is another one here: nothing matches, and nothing aborts.
    "for a machine": of("gpu.amd.com", 'device.driver == "gpu.amd.com"', f'{AMD}.type == "vfio"'),
}
INTEL_SHAPES = {
    "any": of("gpu.intel.com"),
    "4 GiB": of("gpu.intel.com", f'{INTEL_SIZE}.compareTo(quantity("4Gi")) >= 0'),
    "two of 16 GiB": of("gpu.intel.com", f'{INTEL_SIZE}.compareTo(quantity("16Gi")) >= 0', count=2),
    "family Arc": of("gpu.intel.com", f'{INTEL}.family.startsWith("Arc")'),
    "family Flex": of("gpu.intel.com", f"{INTEL}.family == 'Flex'"),
    "i915": of("gpu.intel.com", f'{INTEL}.driver == "i915"'),
    "SR-IOV": of("gpu.intel.com", f"{INTEL}.sriov == true"),
    "all": of("gpu.intel.com", count=0, is_admin=True),
}
ANY_WHOLE = ("any", "whole", "class of whole GPUs")
EXPECTED = {  # devices of each shape on each machine; 0 where a shape is not named
    "radeon-strixpoint": {**dict.fromkeys((*ANY_WHOLE, "all"), 1)},
    "radeon-vega56": {**dict.fromkeys((*ANY_WHOLE, "all"), 1)},
    "mi210-8gpu-2hives": {**dict.fromkeys(ANY_WHOLE, 1), "all": 8, "four on one NUMA node": 4},
    "mi300a-spx-4gpu-xcp": {**dict.fromkeys(ANY_WHOLE, 1), "all": 4, "four on one NUMA node": 4},
    "mi300x-cpx-nps1-8gpu": {
        "any": 1,
        "part": 1,
        "all": TOO_MANY,
        "same GPU": 2,
        "same model": 2,
        "other GPUs": 2,
        "four on one NUMA node": 4,
    },
    "gpu-a380-i915": {"any": 1, "family Arc": 1, "i915": 1, "all": 1},
    "gpu-b580": {"any": 1, "family Arc": 1, "all": 1},
}
OPENED: dict[str, Callable[..., Hardware]] = {"amd": AmdHardware, "intel": IntelHardware}


@pytest.mark.parametrize("form", ["drawn", "captured"])
@pytest.mark.parametrize("name", EXPECTED)
def test_claims_of_the_vendors_pages_get_on_their_machines_what_they_ask_for(
    name: str, form: str, tmp_path: Path
) -> None:
    if form == "captured" and not CAPTURES.is_dir():
        pytest.skip("captures of real machines are not here (DRA_SHARED)")
    vendor = "intel" if name.startswith("gpu-") else "amd"
    slices = slices_of(OPENED[vendor](machine(name, form, vendor, tmp_path)))
    shapes = INTEL_SHAPES if vendor == "intel" else AMD_SHAPES
    found = {title: taken(judged(shape.claim, slices)) for title, shape in shapes.items()}
    assert {title: number for title, number in found.items() if number} == EXPECTED[name]


@pytest.fixture
def divided(tmp_path: Path) -> list[Wire]:
    """One GPU in mode CPX with its memory in four parts, one that is not divided, and one that can't be."""
    cpx = AmdCard("0000:05:00.0", modes=("CPX", "NPS4"), partitions=tuple(range(128, 136)), unique_id=1)
    spx, radeon = AmdCard("0000:06:00.0", 10, 140, unique_id=2), AmdCard("0000:07:00.0", 20, 150, modes=None)
    return slices_of(AmdHardware(AmdTree(tmp_path).write(cpx, spx, radeon).roots))


@pytest.mark.parametrize(
    ("modes", "partitions", "number"),
    [(("cpx", "nps4"), "1", 1), (("cpx", "nps1"), "1", 0), (("spx", "nps1"), "1", 1), (("dpx", "nps2"), "1", 0)],
)
def test_claims_of_auto_partition_get_partitions_that_exist(
    tmp_path: Path, modes: tuple[str, str], partitions: str, number: int
) -> None:
    cpx = AmdCard("0000:05:00.0", modes=("CPX", "NPS4"), partitions=tuple(range(128, 136)), unique_id=1)
    slices = slices_of(AmdHardware(AmdTree(tmp_path).write(cpx, AmdCard("0000:06:00.0", 10, 140)).roots))
    selectors = (f'{AMD}.computePartition == "{modes[0]}"', f'{AMD}.memoryPartition == "{modes[1]}"')
    for shape in (of("gpu.amd.com", *selectors), of("gpu.amd.com", " && ".join(selectors), partitions=partitions)):
        assert taken(judged(shape.claim, slices)) == number


def test_the_class_of_whole_gpus_has_no_divided_one(divided: list[Wire]) -> None:
    everything = judged(of("gpu.amd.com-spx", count=0).claim, divided)
    names = [one["device"] for one in everything.allocation["devices"]["results"]] if everything.allocation else []
    assert names == ["gpu-0000-06-00-0", "gpu-0000-07-00-0"]


def test_all_devices_of_a_divided_gpu_are_refused_with_the_reason_and_a_selector_gets_them(
    divided: list[Wire],
) -> None:
    monitor = of("gpu.amd.com", count=0, is_admin=True)
    refusal = refused(monitor.claim, divided)
    assert "parts of gpu-0000-05-00-0-counter-set: 8 left, too few for all matching devices at once" in refusal
    assert "a selector has to leave out those that contain others" in refusal
    assert taken(judged(replace(monitor, selectors=(PART,)).claim, divided)) == 8
    assert taken(judged(replace(monitor, selectors=(WHOLE,)).claim, divided)) == 3


def test_intels_claims_meet_gpus_with_and_without_memory_of_their_own(tmp_path: Path) -> None:
    flex = IntelCard("0000:03:00.0", 0, 0x56C0, "i915", 16 << 30, virtuals=31)
    integrated = IntelCard("0000:00:02.0", 2, 0xA7A0, "i915", 0)
    tree = IntelTree(tmp_path).write(flex, replace(flex, address="0000:04:00.0", number=1), integrated)
    slices = slices_of(IntelHardware(tree.roots))
    expected = {"any": 1, "4 GiB": 1, "two of 16 GiB": 2, "i915": 1, "SR-IOV": 1, "all": 3}
    found = {title: taken(judged(shape.claim, slices)) for title, shape in INTEL_SHAPES.items()}
    assert {title: number for title, number in found.items() if number} == expected
    aligned = of("gpu.intel.com", count=2, same="gpu.intel.com/pciRoot")
    assert taken(judged(aligned.claim, slices)) == taken(judged(replace(aligned, same=ROOT).claim, slices)) == 2


def test_gaudis_claims_get_cards_of_their_model(tmp_path: Path) -> None:
    cards = [GaudiModule(f"0000:a{n}:00.0", n, str(n), device_id=0x1060) for n in range(2)]
    slices = slices_of(GaudiHardware(GaudiTree(tmp_path).write(*cards).roots))
    gaudi3 = of("gaudi.intel.com", f"{GAUDI}.model == 'Gaudi3'", count=2)
    assert taken(judged(gaudi3.claim, slices)) == 2
    assert taken(judged(replace(gaudi3, selectors=(f"{GAUDI}.model == 'Gaudi2'",)).claim, slices)) == 0
    assert taken(judged(of("gaudi.intel.com", f"{GAUDI}.serial == 'AO04008041'").claim, slices)) == 0
    assert taken(judged(of("gaudi.intel.com", count=0, is_admin=True).claim, slices)) == 2


@pytest.mark.parametrize(
    ("shape", "number"),
    [
        (of("gpu.nvidia.com"), 1),
        (of("gpu.nvidia.com", copies=2), 2),
        (of("gpu.nvidia.com", count=0, is_admin=True), 8),
        (of("gpu.nvidia.com", f"{NVIDIA}.productName.lowerAscii().matches('^.*h100.*$')", count=2), 2),
        (of("gpu.nvidia.com", f"{NVIDIA}.type == 'gpu' && {NVIDIA}.brand == 'Nvidia'"), 1),
        (of("gpu.nvidia.com", f"{NVIDIA}.cudaComputeCapability.isGreaterThan(semver('8.0.0'))"), 1),
        (of("gpu.nvidia.com", f"{NVIDIA_SIZE}.compareTo(quantity('80Gi')) >= 0"), 0),
        (of("gpu.nvidia.com", f"{NVIDIA_SIZE}.compareTo(quantity('40Gi')) >= 0", copies=2, different=BUS), 2),
    ],
)
def test_nvidias_claims_get_on_a_simulated_dgx_h100_what_they_ask_for(shape: Shape, number: int) -> None:
    slices = [{**one, "spec": {**one["spec"], "nodeName": "n"}} for one in profile_slices("dgx-h100")]
    assert taken(judged(shape.claim, slices)) == number


@pytest.mark.parametrize(
    ("profiles", "copies", "number"),
    [("'1g.10gb'", 1, 1), ("'1g.10gb', '2g.20gb', '3g.40gb'", 3, 3), ("'1g.5gb'", 1, 0)],
)
def test_nvidias_claims_for_partitions_of_one_gpu_get_them(profiles: str, copies: int, number: int) -> None:
    slices = [{**one, "spec": {**one["spec"], "nodeName": "n"}} for one in profile_slices("mixed")]
    selector = f"{NVIDIA}.profile in [{profiles}]"
    shape = of("mig.nvidia.com", selector, copies=copies, same="gpu.nvidia.com/parentUUID")
    assert taken(judged(shape.claim, slices)) == number
