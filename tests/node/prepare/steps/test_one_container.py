"""What every pair of claims gives one container: no claim's file takes anything from what another claim's file gives.

A container may have any claims of its pod. A runtime applies their CDI files one after the other: a mount replaces an
earlier one at its path, a variable an earlier one of its name, a node an earlier one at its path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dra_driver.base.wire import DeviceType, MpsSettings
from dra_driver.hardware.choose import choose
from dra_driver.hardware.driver_binding import BusAccess
from dra_driver.hardware.facts import ChannelFacts, PassthroughFacts
from dra_driver.hardware.nvidia.edits.edits import common_edits
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.kernel import SimulatedKernel
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import CHANNEL, Inventory, Offering, channel_devices
from dra_driver.node.prepare.steps.passthrough import PassthroughServices
from tests.node.support.units_rig import UnitsRig
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.driver_root import VERSION, FakeDriverRoot, can_make_nodes
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree
from tests.support.plugin.mig_parts import OTHER, WHOLE, small
from tests.support.plugin.parts import Rig, claim_wire, result
from tests.support.plugin.sharing_parts import SharingRig, mps, replica, time_slicing

Container = dict[str, set[Any]]  # what a container is given under each name, which also says of what kind it is
Ask = Callable[[str], object]  # allocates a claim of a UID

MPS_NAMES = frozenset(
    {
        "mount /tmp/nvidia-mps",
        "mount /dev/shm",
        "variable CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "variable CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    }
)
MPS_KINDS = ("MPS", "partition under MPS", "share under MPS")
# Claims of these kinds can't both work in one container, and the documentation says so in these words.
ONE_OF_A_KIND: dict[frozenset[str], tuple[frozenset[str], str, str]] = {
    **{
        frozenset(pair): (MPS_NAMES, "sharing.md", "A container can use one claim under MPS.")
        for pair in product(MPS_KINDS, MPS_KINDS)
    },
    frozenset({"compute units"}): (
        frozenset({"variable HSA_CU_MASK"}),
        "amd.md",
        "A container can use one claim with `computeUnits`.",
    ),
    frozenset({"Gaudi"}): (
        frozenset(f"variable {n}" for n in ("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HL_VISIBLE_DEVICES")),
        "gaudi.md",
        "A container can use one claim for cards.",
    ),
}


class NvidiaNode(SharingRig):
    """Two GPUs with the files of an installed driver, beside a host's own MPS daemon and other daemons."""

    has_metadata = True

    def restart(self):
        preparer = super().restart()
        root = FakeDriverRoot(self.root / "driver")
        root.add_libraries(VERSION)
        root.add_hook()
        for path in ("/run/nvidia-persistenced/socket", "/tmp/nvidia-mps/control", "/usr/bin/nvidia-smi"):
            root.add(path)
        common, _ = common_edits(root.roots(proc=self.root / "proc"), VERSION)
        self.hardware.common_edits = lambda: common
        return preparer

    def scan(self) -> None:
        super().scan()
        _, whole = channel_devices(ChannelFacts("0" * 8, 237))
        self.inventory = Inventory(self.inventory.offering, hidden=(*self.inventory.hidden, whole))

    def ask(self, *devices: str, **more: Any) -> tuple[Ask, ...]:
        """Return what allocates each of these devices to a claim that is written in the same way."""
        return tuple(lambda uid, name=name: self.allocate(uid, name, **more) for name in devices)

    def asked_for(self) -> dict[str, tuple[Ask, ...]]:
        """Return, for each kind, what allocates a first and a second claim of it."""
        low, high = mps(defaultActiveThreadPercentage=20), mps(defaultActiveThreadPercentage=50)
        lower = mps("MigDeviceConfig", defaultPinnedDeviceMemoryLimit="1Gi")
        higher = mps("MigDeviceConfig", defaultPinnedDeviceMemoryLimit="2Gi")
        return {
            "GPU": self.ask(WHOLE, OTHER),
            "GPU in turns": self.ask(WHOLE, OTHER, configs=(time_slicing("Short"),)),
            "admin access": tuple(
                lambda uid, name=name: self.api.put(claim_wire(uid, result(name, adminAccess=True)))
                for name in (WHOLE, OTHER)
            ),
            "MPS": self.ask(WHOLE, configs=(low,)) + self.ask(OTHER, configs=(high,)),
            "partition": self.ask(small(0), small(1)),
            "partition under MPS": self.ask(small(0), configs=(lower,)) + self.ask(small(1), configs=(higher,)),
            "channel": self.ask(CHANNEL, CHANNEL),
        }


def prepared(rig: Rig, uid: str, ask: Ask) -> Container:
    """Return what the file of a claim gives a container; the claim has ended then."""
    ask(uid)
    rig.prepare(uid)
    document = json.loads((rig.cdi / rig.file_of(uid)).read_text())
    found: Container = {}
    for edits in (document.get("containerEdits", {}), *(one["containerEdits"] for one in document["devices"])):
        for name, value in things(edits):
            found.setdefault(name, set()).add(value)
    rig.unprepare(uid)
    return found


def things(edits: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for mount in edits.get("mounts", ()):
        yield f"mount {mount['containerPath']}", mount["hostPath"]
    for line in edits.get("env", ()):
        name, _, value = line.partition("=")
        yield f"variable {name}", value
    for node in edits.get("deviceNodes", ()):
        yield f"node {node['path']}", (node.get("hostPath"), node["major"], node["minor"])


def of_nvidia(root: Path) -> dict[str, tuple[Container, ...]]:
    rig = NvidiaNode(root)
    found = {kind: of_kind(rig, kind, asks) for kind, asks in rig.asked_for().items()}
    for start in (0, 1):
        rig.by_hand("1g.10gb", start)
    rig.scan()
    found["standing partition"] = of_kind(rig, "standing", rig.ask(small(0), small(1)))
    rig.close()
    return found


def of_shares(root: Path) -> dict[str, tuple[Container, ...]]:
    rig = NvidiaNode(root, is_hard=True)
    share = (
        lambda uid: rig.allocate(uid, replica(0), pods=(rig.pod(1),)),
        lambda uid: rig.allocate_share(uid, "s-1", pods=(rig.pod(1),)),
    )
    found = {"share with a memory limit": of_kind(rig, "share", share)}
    rig.settings = MpsSettings(active_thread_percentage=50)
    rig.scan()
    found["share under MPS"] = of_kind(rig, "mps-share", share)
    rig.close()
    return found


class MachineNode(Rig):
    """Two GPUs that virtual machines get, each in an IOMMU group of its own."""

    def __init__(self, root: Path) -> None:
        kernel = SimulatedKernel(root / "bus")
        kernel.add_driver("vfio-pci")
        gpus = [NvidiaGpu(f"GPU-{n}", f"0000:4{n}:00.0", n, 80 << 30, passthrough=PassthroughFacts()) for n in (1, 2)]
        for number, gpu in enumerate(gpus):
            kernel.add_function(gpu.pci_address, "nvidia", 14 + number)
        (root / "proc").mkdir()
        self.passthrough = PassthroughServices(BusAccess(kernel.roots(Roots(proc=str(root / "proc"))), kernel))
        super().__init__(root)
        self.inventory = Inventory(Offering(tuple(Device(g.passed_name, DeviceType.VFIO, {}, {}, g) for g in gpus)))


def of_machines(root: Path) -> dict[str, tuple[Container, ...]]:
    rig = MachineNode(root)
    names = [device.name for device in rig.inventory.devices]
    found = of_kind(rig, "machine", [lambda uid, name=name: rig.allocate(uid, name) for name in names])
    rig.close()
    return {"GPU for a virtual machine": found}


def of_units(root: Path) -> dict[str, tuple[Container, ...]]:
    rig = UnitsRig(root)
    rig.ask("neighbour", replica(3), 8)
    first = prepared(rig, "units-0", lambda uid: rig.ask(uid, replica(0), 4))
    rig.prepare("neighbour")
    second = prepared(rig, "units-1", lambda uid: rig.ask(uid, replica(1), 8))
    rig.close()
    return {"compute units": (first, second)}


def of_vendor(root: Path, kind: str, tree: Any, driver: str) -> dict[str, tuple[Container, ...]]:
    class VendorRig(Rig):
        has_metadata = True

        def __init__(self) -> None:
            super().__init__(root / "node")
            self.hardware = choose(kind.lower(), tree.roots, node_name="n1")
            self.inventory = build_inventory(self.hardware.discover())
            self.restart()

    VendorRig.driver = driver
    rig = VendorRig()
    names = [device.name for device in rig.inventory.devices]
    found = of_kind(rig, kind, [lambda uid, name=name: rig.allocate(uid, name) for name in names])
    rig.close()
    return {kind: found}


def of_kind(rig: Rig, kind: str, asks: Any) -> tuple[Container, ...]:
    uids = [f"{kind.lower().replace(' ', '-')}-{number}" for number in range(len(asks))]
    return tuple(prepared(rig, uid, ask) for uid, ask in zip(uids, asks, strict=True))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Container, ...]]:
    """A first and a second claim of each kind, as the containers of both see them."""
    root = tmp_path_factory.mktemp("kinds")
    if not can_make_nodes(root):
        pytest.skip("needs device nodes")
    amd, intel, gaudi = AmdTree(root / "amd/tree"), IntelTree(root / "intel/tree"), GaudiTree(root / "gaudi/tree")
    amd.write(*(AmdCard(f"0000:0{5 + n}:00.0", 8 * n, 128 + 8 * n, unique_id=0xA0 + n) for n in range(2)))
    intel.write(*(IntelCard(f"0000:0{3 + n}:00.0", n) for n in range(2)))
    gaudi.write(*(GaudiModule(f"0000:a{n}:00.0", n, str(n), verbs=n) for n in range(2)))
    return {
        **of_nvidia(root / "nvidia"),
        **of_shares(root / "nvidia"),
        **of_machines(root / "machines"),
        **of_units(root / "units"),
        **of_vendor(root / "amd", "AMD", amd, "gpu.amd.com"),
        **of_vendor(root / "intel", "Intel", intel, "gpu.intel.com"),
        **of_vendor(root / "gaudi", "Gaudi", gaudi, "gaudi.intel.com"),
    }


def test_no_claim_takes_from_a_container_what_another_claim_gives_it(kinds: dict[str, tuple[Container, ...]]) -> None:
    for (one, first), (other, second) in product(kinds.items(), kinds.items()):
        differing = {name for name in first[0].keys() & second[1].keys() if len(first[0][name] | second[1][name]) > 1}
        allowed, _, _ = ONE_OF_A_KIND.get(frozenset({one, other}), (frozenset(), "", ""))
        assert differing <= allowed, f"{one} and {other} in one container"


def test_no_claim_takes_from_a_container_what_it_gives_it_itself(kinds: dict[str, tuple[Container, ...]]) -> None:
    for kind, claims in kinds.items():
        assert [name for name, given in (*claims[0].items(), *claims[1].items()) if len(given) > 1] == [], kind


def test_claims_that_exclude_each_other_in_a_container_do_so_in_the_documentation(
    kinds: dict[str, tuple[Container, ...]],
) -> None:
    docs = Path(__file__).parents[4] / "docs"
    for pair, (_, page, sentence) in ONE_OF_A_KIND.items():
        assert pair <= kinds.keys()
        assert sentence in (docs / page).read_text()


def test_the_hosts_own_mps_daemon_is_in_no_container(kinds: dict[str, tuple[Container, ...]]) -> None:
    for kind, claims in kinds.items():
        assert ("mount /tmp/nvidia-mps" in claims[0]) == (kind in MPS_KINDS), kind
