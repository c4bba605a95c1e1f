"""Simulated devices in a container of a real runtime: on this host no /dev/nvidia* exists."""

from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.cdi import render
from tests.support.programs.podman import Podman

pytestmark = pytest.mark.podman

KIND = "k8s.gpu.nvidia.com/claim"


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has real GPU nodes")
def test_a_container_gets_working_nodes_that_the_host_lacks(podman):
    hardware = SimulatedHardware("demo-h100", Roots(), node_name="node-a")
    gpus = hardware.discover().gpus
    cut = gpus[-1]
    edits = {"gpu": hardware.device_edits(gpus[0], None), "part": hardware.device_edits(cut, cut.partitions[0])}
    (podman.cdi / "claim.json").write_bytes(render(KIND, edits, hardware.common_edits()))

    script = (
        "find /dev -name 'nvidia*' -type c | while read n; do stat -c '%n %t:%T' $n; echo x > $n || echo failed; done"
    )
    done = podman.run([f"{KIND}=gpu", f"{KIND}=part"], f"{script}; env")

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    nodes = {node.path for part in (*edits.values(), hardware.common_edits()) for node in part.device_nodes}
    assert len(nodes) == 6
    assert {line for line in lines if line.startswith("/dev/")} == {f"{path} 1:3" for path in nodes}
    assert "failed" not in lines
    assert "NVIDIA_VISIBLE_DEVICES=void" in lines
