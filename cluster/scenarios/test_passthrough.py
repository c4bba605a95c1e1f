"""A GPU for a virtual machine on a real kubelet, scheduler and API server: the class, its namespaces, both sides.

The machine and its kernel are simulated. The policies and the class are the chart's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cluster.agent import Agent
from cluster.api import Object
from cluster.cluster import Cluster
from cluster.labelled_class import LabelledClass, refusal
from cluster.machines.hardware import SIMULATED, machine
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import container, devices, pod, request, template

GPU, PASSED, WHOLE = "0000:1b:00.0", "gpu-0000-1b-00-0-vfio", "gpu-0000-1b-00-0"
CLASS, WIDE, LABEL = "vfio.gpu.nvidia.com", "any-vfio.example.com", "gpu.nvidia.com/passthrough"
FILE = {"version": "passthrough/v1", "gpus": [{"devices": [GPU]}]}
WITH_API = {
    "opaque": {
        "driver": "gpu.nvidia.com",
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "VfioDeviceConfig",
            "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True},
        },
    }
}
KEPT = LabelledClass(
    CLASS,
    WIDE,
    LABEL,
    "vfio",
    "passthrough.yaml",
    f"passthrough.config.version=passthrough/v1,passthrough.config.gpus[0].devices[0]={GPU}",
)


@pytest.fixture
def asking(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Object]:
    """A template for a GPU for a virtual machine, on a server with the policies."""
    made = template(namespace, "vm-gpu", devices(request("gpu", CLASS), config=[WITH_API]))
    with KEPT.enforced(cluster, made, tmp_path / "passthrough-objects.yaml"):
        yield made


def test_a_gpu_goes_to_a_labelled_namespaces_virtual_machine_and_comes_back(
    cluster: Cluster, start_agent: Callable[..., Agent], asking: Object, stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "passthrough.yaml").write_text(yaml.safe_dump(FILE))
    agent = start_agent(
        **machine(SIMULATED, tmp_path, partitioned=()), flags=["--passthrough", str(tmp_path / "passthrough.yaml")]
    )
    until("the GPU for virtual machines", lambda: PASSED in agent.devices(), 60)

    # No class gives it to a pod in a namespace without the label.
    assert f"labelled {LABEL}=true" in refusal(cluster, asking)
    vm = container("main", "gpus")
    stage.create(
        template(stage.namespace, "by-another-class", devices(request("gpu", WIDE))),
        pod(stage.namespace, "sneak", vm, templates={"gpus": "by-another-class"}),
    )
    until("the allocation is refused", lambda: LABEL in " ".join(stage.events("sneak")), 60)
    stage.delete_pod("sneak")

    # In a labelled namespace the pod gets the nodes, and the GPU is offered to no other claim meanwhile.
    KEPT.set_label(cluster, stage.namespace, "true")
    until("the label is known", lambda: not refusal(cluster, asking), 30)
    stage.create(asking, pod(stage.namespace, "vm", vm, templates={"gpus": "vm-gpu"}))
    found = stage.running("vm")
    assert stage.devices(found) == [PASSED]
    nodes = set(stage.seen("vm").nodes)
    assert "/dev/vfio/vfio" in nodes
    assert any(node.removeprefix("/dev/vfio/").isdigit() for node in nodes)
    assert not any("nvidia" in node for node in nodes)
    until("nothing else of the GPU is offered", lambda: of_gpu(agent) == {PASSED}, PATIENCE)

    stage.delete_pod("vm")
    agent.wait_empty()
    until(
        "the GPU is checked",
        lambda: "GPU checked after a virtual machine had it" in agent.daemon.log.read_text(),
        PATIENCE,
    )
    until("the GPU is offered again", lambda: PASSED in of_gpu(agent), PATIENCE)
    KEPT.set_label(cluster, stage.namespace, None)


def of_gpu(agent: Agent) -> set[str]:
    """Return what is published of the GPU."""
    return {name for name in agent.devices() if name.startswith(WHOLE)}
