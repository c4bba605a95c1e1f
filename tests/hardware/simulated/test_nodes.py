"""A profile with a major of its own: nodes differ in their numbers, and whoever has one open runs on that device."""

import json
import os
import stat
from contextlib import contextmanager

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from tests.support.nodes.fake_node import can_make_nodes

MAJOR = 241  # not that of the storms, which may run on the same machine
PROFILE = {
    "about": "one card that can be partitioned, one that can't",
    "nodeMajor": MAJOR,
    "gpus": [{"pci": "0000:01:00.0", "model": "h100-sxm5-80gb", "mig": []}, {"pci": "0000:02:00.0", "model": "l40s"}],
}


@pytest.fixture
def hardware(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(json.dumps(PROFILE))
    return SimulatedHardware(path, Roots(), node_name="node-a", state_dir=tmp_path / "state")


def numbers(edits):
    return {node.path: (node.major, node.minor) for node in edits.device_nodes}


def partitioned(hardware, gpu):
    """Make two partitions, and return them."""
    smallest = next(profile for profile in gpu.mig_profiles if profile.name == "1g.10gb")
    return [hardware.create_partition(gpu, smallest, start, 1.0).facts for start in (0, 1)]


@contextmanager
def opened(folder, numbers):
    """Have a node open, by its path alone: no driver is behind it."""
    path = folder / "dev" / "node"
    path.parent.mkdir(exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*numbers))
    fd = os.open(path, os.O_PATH)
    try:
        yield
    finally:
        os.close(fd)
        path.unlink()


def test_each_node_has_a_number_of_its_own(hardware):
    gpu, other = hardware.discover().gpus
    edits = [hardware.common_edits(), *(hardware.device_edits(gpu, one) for one in partitioned(hardware, gpu))]
    found = numbers(hardware.device_edits(other, None))
    for one in edits:
        found |= numbers(one)
    assert len(found) == 8
    assert len(set(found.values())) == 8
    assert {major for major, _ in found.values()} == {MAJOR}
    assert "241" in hardware.edit_problems()[0]


def test_a_process_with_a_node_open_runs_on_that_device_alone_and_keeps_its_partition(hardware, tmp_path):
    if not can_make_nodes(tmp_path):
        pytest.skip("needs the right to make device nodes")
    gpu, other = hardware.discover().gpus
    first, second = partitioned(hardware, gpu)
    nodes = numbers(hardware.device_edits(gpu, first))
    capability = next(number for path, number in nodes.items() if "cap" in path)
    with opened(tmp_path, capability):
        assert hardware.processes(gpu, first) == (os.getpid(),)
        assert hardware.processes(gpu, second) == ()
        with pytest.raises(HardwareError, match=f"in use by process {os.getpid()}"):
            hardware.destroy_partition(gpu, first.uuid, 0.0)
        hardware.destroy_partition(gpu, second.uuid, 1.0)
    with opened(tmp_path, nodes["/dev/nvidia0"]):
        assert hardware.open_by(gpu) == (os.getpid(),)
        assert hardware.open_by(other) == ()
    hardware.destroy_partition(gpu, first.uuid, 1.0)
