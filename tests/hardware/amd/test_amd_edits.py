"""What containers get of AMD's GPUs: real device nodes, made by mknod."""

import os
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.facts import GpuFacts
from tests.support.nodes.amd_tree import RENDER_GROUP, AmdCard, AmdTree
from tests.support.nodes.fake_node import can_make_nodes


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    return AmdTree(tmp_path)


def whole_of(hardware: AmdHardware) -> GpuFacts:
    return hardware.discover().gpus[0]


def test_a_container_gets_the_compute_node_once_and_the_card_and_render_node_of_its_device(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(AmdCard("0000:05:00.0"), AmdCard("0000:06:00.0", 8, 136)).roots)
    common = hardware.common_edits()
    assert [(n.path, n.major, n.minor, n.permissions) for n in common.device_nodes] == [("/dev/kfd", 235, 0, "rw")]
    edits = hardware.device_edits(hardware.discover().gpus[1], None)
    assert [(n.path, n.major, n.minor) for n in edits.device_nodes] == [
        ("/dev/dri/card8", 226, 8),
        ("/dev/dri/renderD136", 226, 136),
    ]
    assert (edits.additional_gids, edits.mounts, edits.env, hardware.edit_problems()) == ((), (), (), ())


def test_a_partition_gets_its_own_node_and_the_whole_gpu_gets_all(tree: AmdTree) -> None:
    tree.write(AmdCard("0000:05:00.0", modes=("DPX", "NPS1"), partitions=(128, 129)))
    hardware = AmdHardware(tree.roots)
    first, second, whole = hardware.discover().gpus
    paths = [[node.path for node in hardware.device_edits(gpu, None).device_nodes] for gpu in (whole, first, second)]
    assert paths[1:] == [["/dev/dri/card0", "/dev/dri/renderD128"], ["/dev/dri/card1", "/dev/dri/renderD129"]]
    assert sorted(paths[0]) == sorted(paths[1] + paths[2])


def test_the_group_of_a_node_is_added_only_where_its_mode_excludes_others(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(AmdCard("0000:05:00.0")).roots)
    node = tree.folder / "dev/dri/renderD128"
    os.chown(node, 0, RENDER_GROUP)
    assert hardware.device_edits(whole_of(hardware), None).additional_gids == ()
    node.chmod(0o660)
    assert hardware.device_edits(whole_of(hardware), None).additional_gids == (RENDER_GROUP,)


@pytest.mark.parametrize("gone", ["dri/renderD128", "dri/card0"])
def test_a_missing_node_is_named_and_may_come_later(tree: AmdTree, gone: str) -> None:
    hardware = AmdHardware(tree.write(AmdCard("0000:05:00.0")).roots)
    gpu = whole_of(hardware)
    (tree.folder / "dev" / gone).unlink()
    with pytest.raises(HardwareError, match=f"/dev/{gone}") as caught:
        hardware.device_edits(gpu, None)
    assert caught.value.code == "hardware.node-missing"


def test_without_the_compute_driver_a_container_gets_graphics_nodes_and_this_is_a_problem(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(AmdCard("0000:05:00.0", is_topology_there=False)).roots)
    (tree.folder / "sys/class/kfd/kfd/topology/nodes/0/properties").unlink()
    for folder in ("nodes/0", "nodes", "."):
        (tree.folder / "sys/class/kfd/kfd/topology" / folder).resolve().rmdir()
    (tree.folder / "sys/class/kfd/kfd").rmdir()
    (tree.folder / "sys/class/kfd").rmdir()
    assert not hardware.common_edits()
    assert "/dev/kfd" in hardware.edit_problems()[0]
    assert hardware.device_edits(whole_of(hardware), None).device_nodes
