"""GPUs of AMD and virtual functions of Intel for virtual machines, on a real kubelet, scheduler and API server.

The bus and its kernel are emulated; the policies and the classes are the chart's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cluster.agent import Agent
from cluster.api import Object
from cluster.cluster import REPOSITORY, Cluster
from cluster.labelled_class import LabelledClass, refusal
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.vendors import one_of, start
from cluster.workload import container, devices, pod, request, template
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.intel_tree import IntelCard
from tests.support.nodes.vendor_buses import DISPLAY_CLASS, DrmKernel, add_intel, add_radeon_companions, new_amd

RADEON, ARC, FUNCTION = "0000:03:00.0", "0000:9a:00.0", "0000:9a:00.1"
NAVI21 = AmdCard(RADEON, number=1, render_minor=140, device_id=0x73BF, modes=None, unique_id=0xB2)
FLEX = IntelCard(ARC, number=2, device_id=0x56C0, memory_bytes=14 << 30, virtuals=31)
VIRTUAL = IntelCard(FUNCTION, number=3, device_id=0x56C0, memory_bytes=3 << 30, physical=ARC)
FILE = {"version": "passthrough/v1", "gpus": [{"devices": [RADEON, FUNCTION]}]}
AMDS, INTELS = "gpu-0000-03-00-0-vfio", "gpu-0000-9a-00-1-vfio"
LABELS = ("gpu.amd.com/passthrough", "gpu.intel.com/passthrough")
CONFIG = {
    "opaque": {
        "driver": "gpu.amd.com",
        "parameters": {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "VfioDeviceConfig"},
    }
}
BOTH = devices(
    request("amd", "vfio.gpu.amd.com"),
    request("intel", "gpu-vfio.intel.com"),
    config=[{"requests": ["amd"], **CONFIG}],
)
KEPT = LabelledClass(
    "vfio.gpu.amd.com",
    "any-vfio.amd.example.com",
    LABELS[0],
    "vfio",
    "passthrough.yaml",
    r"agent.hardware=amd\,intel,passthrough.config.version=passthrough/v1,"
    f"passthrough.config.gpus[0].devices[0]={RADEON}",
    driver="gpu.amd.com",
)


@pytest.fixture
def bus(tmp_path: Path) -> DrmKernel:
    """A bus with a Radeon, its companions, and a GPU of Intel with a virtual function."""
    kernel = new_amd(tmp_path / "node", NAVI21, pci_class=DISPLAY_CLASS)
    add_radeon_companions(kernel, RADEON)
    return add_intel(kernel, FLEX, VIRTUAL)


@pytest.fixture
def asking(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Object]:
    """A template for a GPU of AMD and a function of Intel, on a server with the policies and classes."""
    cluster.kubectl("apply", "-f", str(REPOSITORY / "deviceclasses/gpu-vfio.intel.com.yaml"))
    made = template(namespace, "vm-gpus", BOTH)
    with KEPT.enforced(cluster, made, tmp_path / "objects.yaml"):
        yield made
    cluster.api.delete("DeviceClass", "gpu-vfio.intel.com")


@pytest.fixture
def agent(start_auto: Callable[..., Agent], bus: DrmKernel, tmp_path: Path) -> Agent:
    """The agent of both vendors, with files about devices."""
    (tmp_path / "passthrough.yaml").write_text(yaml.safe_dump(FILE))
    return start_auto(
        "amd,intel",
        AmdTree(bus.folder).roots,
        {"gpu.amd.com", "gpu.intel.com"},
        flags=("--passthrough", str(tmp_path / "passthrough.yaml"), "--device-metadata", "on"),
        program=(sys.executable, str(REPOSITORY / "cluster/drivers/emulated_bus.py"), str(bus.folder)),
    )


def drivers(bus: DrmKernel) -> list[str]:
    """Return the drivers of the Radeon, its three companions, and the function."""
    return [bus.driver_of(one) for one in (*(f"{RADEON[:-1]}{number}" for number in range(4)), FUNCTION)]


def test_gpus_of_two_vendors_go_to_one_virtual_machine_and_come_back_through_a_killed_agent(
    cluster: Cluster, agent: Agent, bus: DrmKernel, asking: Object, stage: Stage
) -> None:
    before = drivers(bus)
    until("both devices for virtual machines", lambda: {AMDS, INTELS} <= offered(cluster, agent), 30)
    why = refusal(cluster, asking)
    assert any(f"labelled {label}=true" in why for label in LABELS), "either vendor's policy may refuse first"
    cluster.api.patch("Namespace", stage.namespace, "", {"metadata": {"labels": dict.fromkeys(LABELS, "true")}})
    until("the labels are known", lambda: not refusal(cluster, asking), 30)

    stage.create(asking, pod(stage.namespace, "vm", container("main", "gpus"), templates={"gpus": "vm-gpus"}, grace=1))
    assert sorted(stage.devices(stage.running("vm"))) == [AMDS, INTELS]
    assert drivers(bus) == ["vfio-pci"] * 5
    seen = stage.seen("vm")
    assert {"/dev/vfio/vfio", "/dev/vfio/3", "/dev/vfio/61"} <= set(seen.nodes)
    assert not any("dri" in node or "kfd" in node for node in seen.nodes)
    files = {mount.rpartition("/")[2] for mount in seen.mounts if "dra-device-attributes" in mount}
    assert files == {"gpu.amd.com-metadata.json", "gpu.intel.com-metadata.json"}
    start(stage, "container", one_of(stage, "gpu.amd.com"))
    stage.pending("container", "cannot allocate all claims")

    agent.kill()
    agent.start()
    assert drivers(bus) == ["vfio-pci"] * 5
    assert stage.running("vm")
    agent.kill()
    cluster.api.delete("Pod", "vm", stage.namespace)  # the agent is not running and can't give them back
    agent.start()
    cluster.api.wait_gone("Pod", "vm", stage.namespace, seconds=PATIENCE)
    until("every function is back with its own driver", lambda: drivers(bus) == before, PATIENCE)
    stage.running("container", 2 * PATIENCE)
    assert "/dev/dri/renderD140" in stage.seen("container").nodes
    stage.delete_pod("container")
    until("all is offered again", lambda: {AMDS, INTELS, "gpu-0000-03-00-0"} <= offered(cluster, agent), PATIENCE)
    agent.wait_empty(10)


def offered(cluster: Cluster, agent: Agent) -> set[str]:
    """Return the names of all devices in the slices of the agent's node."""
    found = cluster.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={agent.node.name}")
    return {device["name"] for one in found for device in one["spec"].get("devices") or ()}
