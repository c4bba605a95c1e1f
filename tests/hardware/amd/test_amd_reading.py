"""AMD's GPUs and partitions, read from trees as kernels lay them out."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware import pci
from dra_driver.hardware.amd.hardware import AmdHardware, with_pci_facts
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.hardware.facts import Facts, PassthroughFacts
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Describer
from tests.support.nodes.amd_tree import KFD, AmdCard, AmdTree


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path)


def read(tree: AmdTree) -> Facts:
    return AmdHardware(tree.roots).discover()


def gpus(tree: AmdTree) -> list[AmdGpu]:
    return [gpu for gpu in read(tree).gpus if isinstance(gpu, AmdGpu)]


def codes(tree: AmdTree) -> list[str]:
    return [problem.code for problem in read(tree).problems]


def test_a_node_without_amds_gpus_has_none_and_no_problem(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.roots)
    assert not hardware.is_present()
    assert hardware.discover() == Facts("amd")


def test_a_whole_gpu_has_its_facts_from_the_bus_and_the_topology(tree: AmdTree) -> None:
    (gpu,) = gpus(tree.write(AmdCard("0000:05:00.0", hive=0x12, files={"product_name": "AMD Instinct MI300X OAM"})))
    assert (gpu.pci_address, gpu.part, gpu.parts, gpu.minor) == ("0000:05:00.0", "", 0, 128)
    assert (gpu.product_name, gpu.memory_bytes, gpu.compute_units) == ("AMD Instinct MI300X OAM", 192 << 30, 304)
    assert (gpu.numa_node, gpu.pcie_root, gpu.link_domain) == (0, "pci0000:00", "0000000000000012")
    assert (gpu.unique_id, gpu.architecture_target, gpu.driver_version) == ("93bb3629c01aea1c", "gfx942", "6.16.13")
    assert gpu.is_integrated is False
    assert codes(tree) == []


@pytest.mark.parametrize("spelling", ["amdgpu_xcp.{}", "amdgpu_xcp_{}"])
def test_partitions_have_the_cards_of_both_spellings_of_their_devices(tree: AmdTree, spelling: str) -> None:
    tree.xcp = spelling
    tree.write(AmdCard("0000:05:00.0", modes=("DPX", "NPS1"), partitions=(128, 129)))
    parts = [gpu for gpu in gpus(tree) if not gpu.parts]
    assert [(gpu.part, gpu.minor, gpu.nodes) for gpu in parts] == [
        ("dpx-0", 128, ("dri/card0", "dri/renderD128")),
        ("dpx-1", 129, ("dri/card1", "dri/renderD129")),
    ]


def test_a_partitioned_gpu_is_offered_whole_beside_its_partitions_with_all_their_nodes(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0", modes=("QPX", "NPS4"), partitions=(128, 129, 130, 131)))
    *parts, whole = gpus(tree)
    renders = tuple(f"dri/renderD{minor}" for minor in range(128, 132))
    assert (whole.part, whole.parts, whole.nodes[-4:]) == ("qpx-all", 4, renders)
    assert whole.memory_bytes == sum(part.memory_bytes or 0 for part in parts) == 192 << 30
    assert [part.part for part in parts] == ["qpx-0", "qpx-1", "qpx-2", "qpx-3"]
    assert {part.unique_id for part in parts} == {whole.unique_id}
    assert len({part.uuid for part in (whole, *parts)}) == 5


def test_partitions_that_the_topology_lacks_are_not_offered_whatever_render_nodes_exist(tree: AmdTree) -> None:
    card = AmdCard("0000:05:00.0", partitions=(128, 129, 130))
    tree.write(card)
    for number in (2, 3):  # mode SPX: the nodes exist, but can't compute
        (tree.folder / "sys" / KFD / str(number) / "properties").unlink()
    assert [gpu.part for gpu in gpus(tree)] == [""]


def test_an_unreadable_or_unknown_mode_offers_nothing_of_that_gpu_and_all_of_the_others(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0"), AmdCard("0000:06:00.0", number=8, render_minor=136))
    mode = tree.function(tree.cards[0]) / "current_compute_partition"
    mode.write_text("XPX\n")
    assert [gpu.pci_address for gpu in gpus(tree)] == ["0000:06:00.0"]
    assert codes(tree) == ["hardware.partition-mode-unknown"]
    mode.unlink()
    mode.mkdir()  # it is there, and can't be read
    assert [gpu.pci_address for gpu in gpus(tree)] == ["0000:06:00.0"]
    assert codes(tree) == ["hardware.partition-mode-unknown"]
    mode.rmdir()  # absent: the part can't be partitioned
    assert [gpu.pci_address for gpu in gpus(tree)] == ["0000:05:00.0", "0000:06:00.0"]


@pytest.mark.parametrize(("numa_node", "published"), [(1, 1), (-1, -1)])
def test_every_device_has_amds_own_numa_node_and_kubernetes_only_where_the_kernel_knows_it(
    tree: AmdTree, numa_node: int, published: int
) -> None:
    tree.write(AmdCard("0000:05:00.0", numa_node=numa_node, modes=("DPX", "NPS1"), partitions=(128, 129)))
    devices = build_inventory(AmdHardware(tree.roots).discover()).devices
    assert [device.attributes["numaNode"] for device in devices] == [published] * 3
    standard = {device.attributes.get("resource.kubernetes.io/numaNode") for device in devices}
    assert standard == ({numa_node} if numa_node >= 0 else {None})


def test_devices_have_the_modes_of_their_gpu_and_count_their_partitions(tree: AmdTree) -> None:
    cpx = AmdCard("0000:05:00.0", modes=("CPX", "NPS4"), partitions=tuple(range(128, 136)), unique_id=1)
    radeon = AmdCard("0000:07:00.0", 20, 150, modes=None, unique_id=3)
    tree.write(cpx, AmdCard("0000:06:00.0", 10, 140, unique_id=2), radeon)
    names = ("computePartition", "memoryPartition")
    shown = {
        device.name.removeprefix("gpu-0000-"): (
            *(device.attributes.get(name) for name in names),
            device.capacity.get("partitions"),
        )
        for device in build_inventory(AmdHardware(tree.roots).discover()).devices
    }
    assert {shown.pop(f"05-00-0-cpx-{index}") for index in range(8)} == {("cpx", "nps4", 1)}
    assert shown == {
        "05-00-0-cpx-all": ("cpx", "nps4", 8),
        "06-00-0": ("spx", "nps1", 1),
        "07-00-0": (None, None, None),  # it can't be divided
    }


def test_memory_that_no_file_shows_is_a_problem_and_published_as_amds_driver_does(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:03:00.0", modes=None, is_topology_there=False, files={"mem_info_vram_total": ""}))
    facts = AmdHardware(tree.roots).discover()
    (device,) = build_inventory(facts).devices
    assert device.capacity["memory"] == 0
    assert "hardware.fact-unreadable" in [problem.code for problem in facts.problems]


def test_a_gpu_in_the_middle_of_a_switch_is_not_offered(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0", modes=("SPX", "NPS1"), partitions=(128, 129)))
    assert gpus(tree) == []
    assert codes(tree) == ["hardware.partitions-changing"]
    tree.write(AmdCard("0000:05:00.0", modes=("CPX", "NPS1"), is_topology_there=False))
    assert gpus(tree) == []
    assert "hardware.partitions-changing" in codes(tree)


@pytest.mark.parametrize("has_part_bits", [False, True])
@pytest.mark.parametrize("address", ["0000:0c:00.0", "0000:0c:00.1", "0000:0c:02.3"])
def test_a_gpu_may_be_any_function_of_its_slot_divided_or_not(tree: AmdTree, address: str, has_part_bits: bool) -> None:
    tree.write(AmdCard(address, device_id=0x740F, modes=None, has_part_bits=has_part_bits))
    (gpu,) = gpus(tree)
    assert (gpu.pci_address, gpu.part, gpu.compute_units, codes(tree)) == (address, "", 304, [])
    tree.write(AmdCard(address, modes=("DPX", "NPS1"), partitions=(128, 129), has_part_bits=has_part_bits))
    assert [(gpu.pci_address, gpu.part, gpu.minor) for gpu in gpus(tree)] == [
        (address, "dpx-0", 128),
        (address, "dpx-1", 129),
        (address, "dpx-all", 128),
    ]
    assert codes(tree) == []


def test_virtual_functions_of_one_slot_are_gpus_of_their_own(tree: AmdTree) -> None:
    cards = [AmdCard(f"0000:0c:02.{n}", 8 * n, 128 + 8 * n, modes=None, unique_id=n + 1) for n in range(3)]
    tree.write(*cards)
    found = [(gpu.pci_address, gpu.part, gpu.minor, gpu.compute_units) for gpu in gpus(tree)]
    assert found == [(f"0000:0c:02.{n}", "", 128 + 8 * n, 304) for n in range(3)]
    shutil.rmtree(tree.folder / "sys/bus")  # the topology alone tells them apart, too
    assert [(gpu.pci_address, gpu.part) for gpu in gpus(tree)] == [(f"0000:0c:02.{n}", "") for n in range(3)]


@pytest.mark.parametrize("file", ["properties", "mem_banks/0/properties"])
def test_a_node_that_cannot_be_read_is_reported_and_what_depends_on_it_is_not_offered(tree: AmdTree, file: str) -> None:
    cpx = AmdCard("0000:05:00.0", modes=("CPX", "NPS1"), partitions=tuple(range(128, 136)))
    complete = AmdCard("0000:06:00.0", 8, 136, modes=("DPX", "NPS1"), partitions=(136, 137), unique_id=2)
    tree.write(cpx, complete, AmdCard("0000:07:00.0", 16, 144, unique_id=3))
    for node in (3, 11):  # the third part of the first GPU, and all of the last one
        path = tree.folder / "sys" / KFD / str(node) / file
        path.unlink()
        path.mkdir()  # it is there, and can't be read
    offered = [gpu.name.removeprefix("gpu-0000-") for gpu in gpus(tree)]
    assert offered == [f"05-00-0-cpx-{n}" for n in (0, 1, 3, 4, 5, 6, 7)] + [f"06-00-0-dpx-{n}" for n in (0, 1, "all")]
    problems = [(one.code, one.subject) for one in read(tree).problems]
    assert problems == [("hardware.fact-unreadable", at) for at in ("node", "node", "0000:05:00.0", "0000:07:00.0")]


def test_a_topology_that_cannot_be_read_at_all_offers_nothing(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0"))
    shutil.rmtree(tree.folder / "sys" / KFD)
    (tree.folder / "sys" / KFD).write_text("")  # it is there, and can't be listed
    assert gpus(tree) == []
    assert [(one.code, one.subject) for one in read(tree).problems] == [
        ("hardware.fact-unreadable", "node"),
        ("hardware.fact-unreadable", "0000:05:00.0"),
    ]


def test_gpus_at_the_same_bus_of_different_domains_are_different(tree: AmdTree) -> None:
    tree.write(*(AmdCard(f"000{n}:02:00.0", number=8 * n, render_minor=128 + 8 * n, unique_id=n + 1) for n in range(4)))
    assert [(gpu.pci_address, gpu.minor) for gpu in gpus(tree)] == [(f"000{n}:02:00.0", 128 + 8 * n) for n in range(4)]


@pytest.mark.parametrize("is_driven_otherwise", [False, True])
def test_a_gpu_that_left_the_bus_is_not_offered_though_the_topology_still_has_it(
    tree: AmdTree, is_driven_otherwise: bool
) -> None:
    gone, here = AmdCard("0000:05:00.0", unique_id=1), AmdCard("0000:06:00.0", number=1, render_minor=129, unique_id=2)
    tree.write(gone, here)
    (tree.folder / "sys/bus/pci/drivers/amdgpu" / gone.address).unlink()
    (tree.function(gone) / "driver").unlink()
    if not is_driven_otherwise:
        shutil.rmtree(tree.function(gone))
        (tree.folder / "sys/bus/pci/devices" / gone.address).unlink()
    assert [gpu.pci_address for gpu in gpus(tree)] == [here.address]
    assert "hardware.gpu-gone" in codes(tree)


def test_a_missing_render_node_is_a_problem_and_no_number_is_made_up(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0", is_topology_there=False))
    (tree.function(tree.cards[0]) / "drm/renderD128").rmdir()
    (gpu,) = gpus(tree)
    assert (gpu.minor, gpu.nodes) == (-1, ("dri/card0",))
    assert "hardware.node-missing" in codes(tree)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((16441004032, 512 << 20, 16441004032), (16441004032, True)),  # an APU: the topology includes the host's memory
        ((17163091968, 17163091968, 8 << 30), (17163091968, False)),
        ((0, 17163091968, 8 << 30), (17163091968, None)),
    ],
)
def test_the_memory_of_an_apu_is_what_programs_may_allocate(
    tree: AmdTree, sizes: tuple[int, int, int], expected: tuple[int, bool | None]
) -> None:
    bank, vram, host = sizes
    card = AmdCard("0000:c1:00.0", modes=None, memory_bytes=vram, host_bytes=host, bank_bytes=bank)
    (gpu,) = gpus(tree.write(card))
    assert (gpu.memory_bytes, gpu.is_integrated) == expected


def test_memory_comes_from_the_dmem_controller_where_no_other_file_says_it(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:03:00.0", modes=None, is_topology_there=False, files={"mem_info_vram_total": ""}))
    assert gpus(tree)[0].memory_bytes is None
    assert "hardware.fact-unreadable" in codes(tree)
    (tree.folder / "sys/fs/cgroup").mkdir(parents=True)
    lines = "drm/0000:03:00.0/vram0 8514437120\ndrm/0000:03:00.0/stolen 67108864\n"
    (tree.folder / "sys/fs/cgroup/dmem.capacity").write_text(lines)
    assert gpus(tree)[0].memory_bytes == 8514437120


@pytest.mark.parametrize(
    ("text", "version", "full"),
    [
        (None, None, None),
        ("", None, None),
        ("6.16.13", "6.16.13", "6.16.13"),
        ("6.19.14.31400000", "6.19.14", "6.19.14.31400000"),
    ],
)
def test_versions_of_the_driver_are_taken_as_they_occur(
    tree: AmdTree, text: str | None, version: str | None, full: str | None
) -> None:
    facts = read(tree.write(AmdCard("0000:05:00.0"), version=text))
    assert facts.driver_version == version
    assert [gpu.driver_version for gpu in facts.gpus if isinstance(gpu, AmdGpu)] == [full]


@pytest.mark.parametrize("text", ["", "0", "0000000000000000", "none", "1" * 40])
def test_a_unique_id_that_is_invalid_is_left_out(tree: AmdTree, text: str) -> None:
    (gpu,) = gpus(tree.write(AmdCard("0000:c1:00.0", unique_id=0, files={"unique_id": text})))
    assert gpu.unique_id is None
    assert gpu.uuid == "0000:c1:00.0"


def test_a_gpu_of_another_driver_is_a_problem_and_not_offered(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0"), AmdCard("0000:06:00.0", number=8, render_minor=136, is_topology_there=False))
    for path in (tree.folder / "sys/bus/pci/drivers/amdgpu/0000:06:00.0", tree.function(tree.cards[1]) / "driver"):
        path.unlink()
    vfio = tree.folder / "sys/bus/pci/drivers/vfio-pci"
    vfio.mkdir()
    (tree.function(tree.cards[1]) / "driver").symlink_to(vfio)
    facts = read(tree)
    assert [gpu.pci_address for gpu in facts.gpus] == ["0000:05:00.0"]
    assert [(p.code, p.subject) for p in facts.problems if p.code == "hardware.gpu-not-driven"] == [
        ("hardware.gpu-not-driven", "0000:06:00.0")
    ]


def bind(tree: AmdTree, card: AmdCard, driver: str, physical: AmdCard | None = None) -> None:
    """Take a card from amdgpu, and give it to another driver ("" for none); it may be a virtual function."""
    function = tree.function(card)
    for path in (tree.folder / "sys/bus/pci/drivers/amdgpu" / card.address, function / "driver"):
        path.unlink()
    if driver:
        folder = tree.folder / "sys/bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        (function / "driver").symlink_to(folder)
    if physical is not None:
        (function / "physfn").symlink_to(tree.function(physical))


@pytest.mark.parametrize("driver", ["vfio-pci", "amdgpu_vfio_pci", ""])
def test_virtual_functions_for_machines_and_the_gpu_that_is_divided_for_them_are_no_problem(
    tree: AmdTree, driver: str
) -> None:
    gpu, part = AmdCard("0000:0a:00.0"), AmdCard("0000:0a:02.0", 8, 136)
    tree.write(replace(gpu, is_topology_there=False), part)
    bind(tree, gpu, "gim")
    bind(tree, part, driver, gpu)
    assert (gpus(tree), "hardware.gpu-not-driven" in codes(tree)) == ([], False)


def test_a_whole_gpu_with_a_vfio_driver_that_nobody_named_is_still_a_problem(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:0a:00.0", is_topology_there=False))
    bind(tree, tree.cards[0], "vfio-pci")
    assert codes(tree) == ["hardware.gpu-not-driven"]


@pytest.mark.parametrize(
    ("number", "profile", "size", "units"),
    [(8, "cpx", 24 << 30, 38), (1, "spx", 192 << 30, 304), (3, "tpx", 64 << 30, 101)],
)
def test_a_virtual_function_for_a_machine_has_its_part_of_the_gpu_as_amd_publishes_it(
    tree: AmdTree, number: int, profile: str, size: int, units: int
) -> None:
    gpu, part = AmdCard("0000:0a:00.0", files={"sriov_numvfs": str(number)}), AmdCard("0000:0a:02.0", 8, 136, 0x74B5)
    tree.write(gpu, part)
    bind(tree, part, "vfio-pci", gpu)
    bare = AmdGpu("", part.address, -1, None, pci_id=0x74B51002, passthrough=PassthroughFacts(physical=gpu.address))
    found = with_pci_facts(bare, tree.roots)
    device = Describer(Facts("amd")).describe_passed(found.passed_name, found)
    assert device.attributes["partitionProfile"] == profile
    assert (device.capacity["memory"], device.capacity["computeUnits"]) == (size, units)


def test_a_function_that_leaves_the_bus_while_it_is_read_has_no_root(
    tree: AmdTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(AmdCard("0000:05:00.0"))

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", gone)
    assert pci.read_pcie_root(tree.roots, "0000:05:00.0") is None


@pytest.mark.parametrize(
    "name", ["AMD Instinct\n\x1b[31m MI300X", "AMD \u202eInstinct MI300X", "AMD\tInstinct\x07 MI300X"]
)
def test_names_with_characters_that_do_not_print_are_published_without_them(tree: AmdTree, name: str) -> None:
    tree.write(replace(AmdCard("0000:05:00.0"), files={"product_name": name, "vbios_version": "113-M3\n\u202e00"}))
    (device,) = build_inventory(AmdHardware(tree.roots).discover()).devices
    assert str(device.attributes["productName"]).replace("31m", "").replace("__", "_") == "AMD_Instinct_MI300X"
    assert device.attributes["vbiosVersion"] == "113-M3 00"


def test_a_node_of_the_topology_belongs_to_the_gpu_that_it_names_whatever_its_render_node(tree: AmdTree) -> None:
    first, second = AmdCard("0000:05:00.0", simd_count=400), AmdCard("0000:06:00.0", 8, 136, simd_count=800)
    tree.write(first, second)
    folder = Path(tree.roots.sys, "class/kfd/kfd/topology/nodes")
    for node, wrong in (("1", 136), ("2", 128)):
        path = folder / node / "properties"
        path.write_text(re.sub(r"drm_render_minor \d+", f"drm_render_minor {wrong}", path.read_text()))
    found = AmdHardware(tree.roots).discover()
    assert [(gpu.pci_address, gpu.simd_units, gpu.minor) for gpu in found.gpus if isinstance(gpu, AmdGpu)] == [
        ("0000:05:00.0", 400, 128),
        ("0000:06:00.0", 800, 136),
    ]
    assert found.problems == ()


def test_a_render_node_belongs_to_one_device_only(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0"), AmdCard("0000:06:00.0", 8, 128))
    found = AmdHardware(tree.roots).discover()
    assert [gpu.pci_address for gpu in found.gpus] == ["0000:05:00.0"]
    assert [(one.code, one.subject) for one in found.problems] == [("hardware.identity-shared", "0000:06:00.0")]


def test_the_fingerprint_changes_with_a_mode_a_node_and_the_topology(tree: AmdTree) -> None:
    card = AmdCard("0000:05:00.0")
    hardware = AmdHardware(tree.write(card).roots)
    seen = [hardware.fingerprint()]
    assert hardware.fingerprint() == seen[0]
    (tree.function(card) / "current_compute_partition").write_text("CPX\n")
    seen.append(hardware.fingerprint())
    (tree.folder / "dev/dri/renderD128").unlink()
    seen.append(hardware.fingerprint())
    (tree.folder / "sys" / KFD / "9").mkdir()
    seen.append(hardware.fingerprint())
    assert len(set(seen)) == 4


def test_hostile_files_of_the_topology_end_in_facts_left_out(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0"))
    node = tree.folder / "sys" / KFD
    (node / "1/properties").write_text("simd_count 99999999999999999999999999\nunique_id -1\nsimd_per_cu 0\n\0\n")
    (node / "x").mkdir()
    (node / "٣").mkdir()
    (gpu,) = gpus(tree)
    assert (gpu.compute_units, gpu.pci_address) == (None, "0000:05:00.0")
