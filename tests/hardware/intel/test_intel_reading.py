"""Intel's GPUs, read from trees as kernels lay them out."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.intel.attributes import IntelHardware
from dra_driver.hardware.intel.reading import IntelGpu, read_gpus
from dra_driver.hardware.sysfs import dmem_capacity
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire
from tests.support.nodes.fake_node import can_make_nodes, make_node
from tests.support.nodes.intel_tree import IntelCard, IntelTree

B580 = IntelCard("0000:03:00.0")


@pytest.fixture
def tree(tmp_path: Path) -> IntelTree:
    return IntelTree(tmp_path)


def gpus(tree: IntelTree) -> list[IntelGpu]:
    return [gpu for gpu in IntelHardware(tree.roots).discover().gpus if isinstance(gpu, IntelGpu)]


def codes(tree: IntelTree) -> list[str]:
    return [problem.code for problem in IntelHardware(tree.roots).discover().problems]


def test_a_gpu_has_its_facts_from_the_bus_and_the_dmem_controller(tree: IntelTree) -> None:
    tree.write(replace(B580, files={"numa_node": "1"}))
    (gpu,) = gpus(tree)
    assert (gpu.model, gpu.family, gpu.memory_bytes, gpu.is_integrated) == ("B580", "Arc B-Series", 12 << 30, False)
    assert (gpu.numa_node, gpu.pcie_root, gpu.kernel_driver) == (1, "pci0000:00", "xe")
    assert (gpu.minor, gpu.nodes) == (128, ("dri/card0", "dri/renderD128"))
    assert codes(tree) == []


def test_gpus_of_both_kernel_drivers_are_found_in_pci_order(tree: IntelTree) -> None:
    tree.write(IntelCard("0000:0b:00.0", 1, 0x56A5, "i915", 6 << 30), B580)
    assert [(gpu.pci_address, gpu.model) for gpu in gpus(tree)] == [("0000:03:00.0", "B580"), ("0000:0b:00.0", "A380")]


def test_the_kernel_driver_is_asked_for_the_memory_where_dmem_does_not_list_it(tree: IntelTree) -> None:
    tree.write(B580, has_dmem=False)
    asked: list[tuple[str, str]] = []

    def ask(driver: str, path: str) -> int:
        asked.append((driver, path))
        return 12 << 30

    (gpu,) = read_gpus(tree.roots, ask).gpus
    assert gpu.memory_bytes == 12 << 30
    assert asked == [("xe", f"{tree.folder}/dev/dri/card0")]


@pytest.mark.parametrize("below", ["", "memory/"])
def test_memory_of_all_tiles_is_that_of_the_gpu_where_the_kernel_shows_it_in_files(tree: IntelTree, below: str) -> None:
    files = {f"tile{number}/{below}physical_vram_size_bytes": str(64 << 30) for number in range(2)}
    tree.write(IntelCard("0000:03:00.0", device_id=0x0BD5, files=files), has_dmem=False)
    (gpu,) = gpus(tree)
    assert (gpu.model, gpu.memory_bytes, codes(tree)) == ("Max 1550", 128 << 30, [])


def test_device_nodes_of_this_machine_are_not_used_for_a_copy_of_another_machine(tree: IntelTree) -> None:
    tree.write(B580, has_dmem=False)
    asked: list[str] = []
    elsewhere = tree.roots._replace(dev="/dev")
    (gpu,) = read_gpus(elsewhere, lambda _, path: asked.append(path)).gpus
    assert (gpu.memory_bytes, asked) == (None, [])


def test_unknown_memory_is_a_problem_and_published_as_intels_driver_does(tree: IntelTree) -> None:
    tree.write(B580, has_dmem=False)
    facts = IntelHardware(tree.roots).discover()
    assert [problem.code for problem in facts.problems] == ["hardware.fact-unreadable"]
    (device,) = build_inventory(facts).devices
    assert device.capacity["memory"] == 0


def test_the_pci_root_is_also_published_in_the_form_of_intels_driver(tree: IntelTree) -> None:
    (device,) = build_inventory(IntelHardware(tree.write(B580).roots).discover()).devices
    assert device.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:00"
    assert device.attributes["pciRoot"] == "00"


@pytest.mark.parametrize("device_id", [0xA7A0, 0x9A60])
def test_an_integrated_gpu_is_marked_as_one_and_has_no_memory_of_its_own(tree: IntelTree, device_id: int) -> None:
    tree.write(IntelCard("0000:00:02.0", device_id=device_id, driver="i915", memory_bytes=0))
    (gpu,) = gpus(tree)
    assert (gpu.is_integrated, gpu.memory_bytes, codes(tree)) == (True, None, [])
    (device,) = build_inventory(IntelHardware(tree.roots).discover()).devices
    assert device_wire(device)["capacity"]["memory"] == {"value": "0"}


def test_an_unknown_model_is_published_by_its_id(tree: IntelTree) -> None:
    tree.write(replace(B580, device_id=0x1234))
    (device,) = build_inventory(IntelHardware(tree.roots).discover()).devices
    assert (device.attributes["model"], device.attributes["family"]) == ("0x1234", "Unknown")


def test_virtual_functions_are_devices_that_name_their_gpu(tree: IntelTree) -> None:
    flex = IntelCard("0000:03:00.0", 0, 0x56C0, "i915", 16 << 30, virtuals=31)
    tree.write(flex, IntelCard("0000:03:00.1", 1, 0x56C0, "i915", 2 << 30, physical=flex.address))
    devices = build_inventory(IntelHardware(tree.roots).discover()).devices
    found = [
        (d.attributes["type"], d.attributes["sriov"], d.attributes.get("physicalFunction"), d.capacity["memory"])
        for d in devices
    ]
    assert found == [("gpu", True, None, 16 << 30), ("vf", False, "0000:03:00.0", 2 << 30)]


def test_a_gpu_without_a_render_node_is_offered_with_its_card(tree: IntelTree) -> None:
    (gpu,) = gpus(tree.write(replace(B580, has_render=False)))
    assert (gpu.minor, gpu.nodes) == (-1, ("dri/card0",))


def test_a_gpu_of_another_kernel_driver_is_a_problem(tree: IntelTree) -> None:
    tree.write(replace(B580, driver="vfio-pci"))
    assert (gpus(tree), codes(tree)) == ([], ["hardware.gpu-not-driven"])


def test_only_admin_access_gets_the_nodes_of_the_management_engine(tree: IntelTree) -> None:
    if not can_make_nodes(tree.folder):
        pytest.skip("making device nodes needs root")
    tree.write(replace(B580, files={"xe.mei-gscfi.768/mei/mei0/dev": "244:0"}))
    make_node(tree.folder / "dev/mei0", 244, 0, mode=0o600)
    hardware = IntelHardware(tree.roots)
    (gpu,) = hardware.discover().gpus
    usual = [node.path for node in hardware.device_edits(gpu, None).device_nodes]
    assert usual == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert [node.path for node in hardware.admin_edits(gpu).device_nodes] == ["/dev/mei0"]


def test_nodes_are_also_mounted_under_their_names_by_path_where_the_host_has_them(tree: IntelTree) -> None:
    if not can_make_nodes(tree.folder):
        pytest.skip("making device nodes needs root")
    tree.write(B580)
    by_path = tree.folder / "dev/dri/by-path"
    by_path.mkdir()
    (by_path / "pci-0000:03:00.0-render").symlink_to("../renderD128")
    hardware = IntelHardware(tree.roots)
    (mount,) = hardware.device_edits(hardware.discover().gpus[0], None).mounts
    assert mount.container_path == "/dev/dri/by-path/pci-0000:03:00.0-render"
    assert mount.host_path.endswith("/dev/dri/renderD128")


def test_regions_of_one_gpu_in_dmem_capacity_are_summed_and_others_are_ignored(tree: IntelTree) -> None:
    tree.write(B580)
    own = ("drm/0000:03:00.0/vram0 100", "drm/0000:03:00.0/vram1 20", "drm/0000:03:00.0/stolen 3")
    text = "\n".join((*own, "drm/0000:04:00.0/vram0 7"))
    (tree.folder / "sys/fs/cgroup/dmem.capacity").write_text(text)
    assert dmem_capacity(tree.roots, "0000:03:00.0") == 120
    assert dmem_capacity(tree.roots, "0000:05:00.0") is None
