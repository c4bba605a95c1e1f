"""Device nodes: where they are found, what numbers they get, and the error when one is missing."""

from __future__ import annotations

import pytest

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.facts import DeviceNode
from dra_driver.hardware.nvidia.edits import nodes
from dra_driver.hardware.port import Roots
from tests.support.nodes.driver_root import add_capability, fake_dev, fake_proc, make_node


def test_a_node_of_another_dev_root_keeps_its_usual_path_in_the_container(dev):
    roots = Roots(dev=str(dev))
    assert nodes.gpu_node(roots, 1) == DeviceNode(
        "/dev/nvidia1", 195, 1, host_path=f"{dev}/nvidia1", file_mode=0o666, permissions="rw"
    )


def test_a_node_of_the_usual_dev_root_has_no_host_path():
    node = nodes.find_node(Roots(), "null")
    assert node is not None
    assert (node.path, node.host_path, node.major, node.minor) == ("/dev/null", "", 1, 3)


def test_the_dev_root_comes_before_the_driver_roots_own_dev(dev, tmp_path):
    make_node(tmp_path / "driver/dev/nvidia0", 195, 77)
    make_node(tmp_path / "driver/dev/nvidia9", 195, 9)
    roots = Roots(dev=str(dev), driver="/run/nvidia/driver", driver_mount=str(tmp_path / "driver"))
    assert nodes.gpu_node(roots, 0).minor == 0
    assert nodes.gpu_node(roots, 9).host_path == "/run/nvidia/driver/dev/nvidia9"


def test_a_host_root_seen_at_a_mount_gives_plain_paths(make_nodes, tmp_path):
    make_node(tmp_path / "host/dev/nvidia0", 195, 0)
    roots = Roots(dev=str(tmp_path / "none"), driver="/", driver_mount=str(tmp_path / "host"))
    assert nodes.gpu_node(roots, 0).host_path == ""


def test_the_numbers_of_a_node_are_read_each_time(dev):
    roots = Roots(dev=str(dev))
    assert nodes.gpu_node(roots, 0).major == 195
    make_node(dev / "nvidia0", 240, 7)
    assert (nodes.gpu_node(roots, 0).major, nodes.gpu_node(roots, 0).minor) == (240, 7)


def test_a_missing_node_is_named_in_an_error_to_retry_later(tmp_path):
    (tmp_path / "nvidia3").write_text("no device")
    for minor in (3, 4):
        with pytest.raises(HardwareError, match=f"/dev/nvidia{minor}") as caught:
            nodes.gpu_node(Roots(dev=str(tmp_path)), minor)
        assert caught.value.code == "hardware.node-missing"
        assert caught.value.retry is Retry.LATER
        assert str(tmp_path) in caught.value.message


def test_control_nodes_are_those_that_exist(dev, tmp_path):
    (dev / "nvidia-modeset").unlink()
    roots = Roots(dev=str(dev), proc=str(tmp_path))
    assert [n.path for n in nodes.control_nodes(roots)] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]


def test_nodes_that_do_not_exist_yet_get_the_kernels_numbers(tmp_path):
    proc = fake_proc(tmp_path / "proc", majors={"mem": 1, "nvidia-frontend": 195, "nvidia-uvm": 511})
    found = nodes.control_nodes(Roots(dev=str(tmp_path), proc=str(proc)))
    assert [(n.path, n.host_path, n.major, n.minor) for n in found] == [
        ("/dev/nvidiactl", "", 195, 255),
        ("/dev/nvidia-uvm", "", 511, 0),
        ("/dev/nvidia-uvm-tools", "", 511, 1),
    ]


def test_capability_nodes_need_no_node_on_the_host(proc, tmp_path):
    add_capability(proc, 0, "gi3/access", 30, mode=256)
    add_capability(proc, 0, "gi3/ci0/access", 31)
    found = nodes.capability_nodes(Roots(dev=str(tmp_path), proc=str(proc)), 0, 3, 0)
    assert [(n.path, n.host_path, n.major, n.minor, n.file_mode) for n in found] == [
        ("/dev/nvidia-caps/nvidia-cap30", "", 234, 30, 0o400),
        ("/dev/nvidia-caps/nvidia-cap31", "", 234, 31, 0o444),
    ]


def test_capability_nodes_come_from_the_flat_table_where_there_is_no_tree(proc, tmp_path):
    table = proc / "driver" / "nvidia-caps" / "mig-minors"
    table.parent.mkdir()
    minors = {"gpu1/gi3/access": 165, "gpu1/gi3/ci0/access": 166, "gpu0/gi3/access": 30, "gpu0/gi3/ci0/access": 31}
    table.write_text("config 1\nmonitor 2\n" + "".join(f"{name} {minor}\n" for name, minor in minors.items()))
    roots = Roots(dev=str(tmp_path), proc=str(proc))
    assert [n.minor for n in nodes.capability_nodes(roots, 0, 3, 0)] == [30, 31]
    assert [n.minor for n in nodes.capability_nodes(roots, 1, 3, 0)] == [165, 166]


def test_a_capability_node_on_the_host_is_used_as_it_is(dev, proc):
    add_capability(proc, 0, "gi3/access", 30)
    add_capability(proc, 0, "gi3/ci0/access", 31)
    make_node(dev / "nvidia-caps" / "nvidia-cap30", 239, 30, mode=0o440, gid=44)
    first, second = nodes.capability_nodes(Roots(dev=str(dev), proc=str(proc)), 0, 3, 0)
    assert (first.major, first.host_path, first.gid) == (239, f"{dev}/nvidia-caps/nvidia-cap30", 44)
    assert (second.major, second.host_path) == (234, "")


@pytest.mark.parametrize("majors", [None, {"mem": 1}])
def test_an_instance_that_the_kernel_does_not_list_is_an_error(tmp_path, majors):
    proc = fake_proc(tmp_path / "proc", majors=majors)
    if majors:
        add_capability(proc, 0, "gi3/access", 30)
    with pytest.raises(HardwareError) as caught:
        nodes.capability_nodes(Roots(dev=str(tmp_path), proc=str(proc)), 0, 3, 0)
    assert caught.value.code == "hardware.node-missing"


def test_drm_nodes_are_those_that_sysfs_names(dev, tmp_path):
    for name in ("card1", "renderD129", "controlD64"):
        (tmp_path / "sys/bus/pci/devices/0000:65:00.0/drm" / name).mkdir(parents=True)
    make_node(dev / "dri/card1", 226, 1, mode=0o660, gid=44)
    make_node(dev / "dri/renderD129", 226, 129, mode=0o666, gid=105)
    found = nodes.drm_nodes(Roots(dev=str(dev), sys=str(tmp_path / "sys")), "0000:65:00.0")
    assert [(n.path, n.minor) for n in found] == [("/dev/dri/card1", 1), ("/dev/dri/renderD129", 129)]
    assert nodes.groups_needed(found) == (44,)  # everybody may open the other one
    assert nodes.drm_nodes(Roots(sys=str(tmp_path)), "0000:01:00.0") == ()


def test_majors_of_block_devices_are_not_taken_for_character_devices(tmp_path):
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n  8 nvidia-uvm\n")
    assert nodes.character_majors(str(tmp_path)) == {"mem": 1}
    assert nodes.character_majors(str(tmp_path / "none")) == {}


def test_the_group_of_the_control_nodes_is_needed(make_nodes, tmp_path):
    dev = fake_dev(tmp_path / "dev", mode=0o660, gid=44)
    found = nodes.control_nodes(Roots(dev=str(dev), proc=str(tmp_path)))
    assert {n.gid for n in found} == {44}
    assert nodes.groups_needed(found) == (44,)
