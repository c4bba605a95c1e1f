"""The real agent process over AMD's GPUs: a tree of sysfs with real device nodes, an embedded cluster."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dra_driver.base.names import pool_name
from dra_driver.simulator.plugin_watcher import ClaimRef
from dra_driver.simulator.store import EVENTS, SLICES
from tests.support.agents.agent_process import NODE, Stage, stage
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.dmem_tree import VRAM, DmemTree
from tests.support.nodes.fake_node import can_make_nodes
from tests.support.waiting import until

AMD_DRIVER = "gpu.amd.com"
CARD = AmdCard("0000:05:00.0")
DPX = replace(CARD, modes=("DPX", "NPS1"), partitions=(128, 129))
OTHER = AmdCard("0000:06:00.0", number=8, render_minor=136)


class Machine:
    """A node with AMD's GPUs, and its agent."""

    def __init__(self, here: Stage, folder: Path) -> None:
        self.here, self.tree = here, AmdTree(folder)

    def start(self, *more: str) -> None:
        roots = self.tree.roots
        flags = f"--sysfs-root={roots.sys}", f"--proc-root={roots.proc}", f"--dev-root={roots.dev}"
        self.here.start("amd", *flags, *more)

    def devices(self) -> dict[str, dict[str, Any]]:
        slices = [one for one in self.here.api.items(SLICES) if one["spec"]["driver"] == AMD_DRIVER]
        return {device["name"]: device for one in slices for device in one["spec"].get("devices", ())}

    def claim(self, *devices: str) -> ClaimRef:
        requests = [{"name": f"gpu-{n}", "exactly": {"deviceClassName": AMD_DRIVER}} for n, _ in enumerate(devices)]
        wire = self.here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"generateName": "claim-", "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        pool = pool_name(NODE, AMD_DRIVER)
        results = [
            {"request": f"gpu-{n}", "driver": AMD_DRIVER, "pool": pool, "device": device}
            for n, device in enumerate(devices)
        ]
        wire["status"] = {"allocation": {"devices": {"results": results}}}
        return self.allocated(wire)

    def share(self, device: str, pod: str, **config: Any) -> ClaimRef:
        """Return a claim of one share of a device, for a pod; `config` is what a config of AMD's group says."""
        request = {"name": "share", "exactly": {"deviceClassName": "gpu-share.amd.com"}}
        wire = self.here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"generateName": "claim-", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        result = {"request": "share", "driver": AMD_DRIVER, "pool": pool_name(NODE, AMD_DRIVER), "device": device}
        result |= {"shareID": str(uuid4()), "consumedCapacity": {"memory": "48Gi", "shares": "1"}}
        wire["status"] = {
            "allocation": {"devices": {"results": [result], "config": [_of_claim(config)] if config else []}},
            "reservedFor": [{"resource": "pods", "name": "trainer", "uid": pod}],
        }
        return self.allocated(wire)

    def allocated(self, wire: dict[str, Any]) -> ClaimRef:
        """Store the status of a claim, as the scheduler does."""
        name = wire["metadata"]["name"]
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status"
        self.here.api.request("PUT", path, body=wire)
        return ClaimRef("default", name, wire["metadata"]["uid"])


def _of_claim(config: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig", **config}
    return {"source": "FromClaim", "opaque": {"driver": AMD_DRIVER, "parameters": parameters}}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    with stage("1.36") as here:  # it keeps counters
        yield Machine(here, tmp_path / "node")


def test_gpus_are_published_under_amds_names_and_a_claim_gets_their_nodes(machine: Machine) -> None:
    machine.tree.write(CARD, OTHER)
    machine.start()
    until(lambda: len(machine.devices()) == 2, what="two GPUs")
    device = machine.devices()["gpu-0000-05-00-0"]
    assert device["attributes"]["type"] == {"string": "amdgpu"}
    assert device["attributes"]["partitionProfile"] == {"string": "spx_nps1"}
    assert device["attributes"]["driverVersion"] == {"version": "6.16.13"}
    assert device["capacity"]["memory"] == {"value": "192Gi"}
    plugin = machine.here.kubelet.wait_registered(AMD_DRIVER)
    claim = machine.claim("gpu-0000-06-00-0")
    ((prepared,),) = plugin.prepare([claim]).values()
    assert prepared.cdi_ids == (f"k8s.gpu.amd.com/claim={claim.uid}-gpu-0000-06-00-0",)
    (file,) = machine.here.kubelet.cdi_dir.glob("*.json")
    document = json.loads(file.read_text())
    common = [node["path"] for node in document["containerEdits"]["deviceNodes"]]
    own = [node["path"] for one in document["devices"] for node in one["containerEdits"]["deviceNodes"]]
    assert (common, own) == (["/dev/kfd"], ["/dev/dri/card8", "/dev/dri/renderD136"])
    assert "env" not in document["containerEdits"]
    assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert not list(machine.here.kubelet.cdi_dir.iterdir())


def test_partitions_and_the_whole_gpu_exclude_each_other_by_counters(machine: Machine) -> None:
    machine.tree.write(DPX, OTHER)
    machine.start()
    until(lambda: len(machine.devices()) == 4, what="a GPU, its two partitions, and another GPU")
    taken = {
        name: device["consumesCounters"][0]["counters"]["parts"]["value"]
        for name, device in machine.devices().items()
        if "consumesCounters" in device
    }
    assert taken == {"gpu-0000-05-00-0-dpx-all": "2", "gpu-0000-05-00-0-dpx-0": "1", "gpu-0000-05-00-0-dpx-1": "1"}
    sets = [one for item in machine.here.api.items(SLICES) for one in item["spec"].get("sharedCounters", ())]
    assert [one["counters"] for one in sets] == [{"parts": {"value": "2"}}]


@pytest.mark.long
def test_a_mode_switched_while_the_agent_runs_changes_the_devices_and_refuses_old_ones(machine: Machine) -> None:
    machine.tree.write(CARD, OTHER)
    machine.start()
    until(lambda: len(machine.devices()) == 2, what="two GPUs")
    plugin = machine.here.kubelet.wait_registered(AMD_DRIVER)
    machine.tree.write(DPX, OTHER)
    until(lambda: "gpu-0000-05-00-0-dpx-1" in machine.devices(), what="the partitions")
    claim = machine.claim("gpu-0000-05-00-0-dpx-1")
    ((prepared,),) = plugin.prepare([claim]).values()
    assert prepared.device == "gpu-0000-05-00-0-dpx-1"
    machine.tree.write(CARD, OTHER)
    until(lambda: len(machine.devices()) == 2, what="two GPUs again")
    late = machine.claim("gpu-0000-05-00-0-dpx-0")
    (answer,) = plugin.prepare([late]).values()
    assert "gpu-0000-05-00-0-dpx-0" in answer
    assert plugin.unprepare([claim]) == {claim.uid: ""}


def test_uncorrectable_errors_taint_the_gpu_and_a_gpu_that_left_the_bus_is_lost(machine: Machine) -> None:
    machine.tree.write(replace(CARD, files={"ras/umc_err_count": "ue: 0\nce: 3"}), OTHER)
    machine.start()
    until(lambda: len(machine.devices()) == 2, what="two GPUs")
    assert not any("taints" in device for device in machine.devices().values())
    (machine.tree.function(CARD) / "ras/umc_err_count").write_text("ue: 1\nce: 3\n")
    until(lambda: "taints" in machine.devices()["gpu-0000-05-00-0"], what="a taint")
    keys = {taint["key"] for taint in machine.devices()["gpu-0000-05-00-0"]["taints"]}
    assert keys == {"gpu.amd.com/ecc-uncorrectable"}
    assert "taints" not in machine.devices()["gpu-0000-06-00-0"]
    (machine.tree.function(OTHER) / "config").write_bytes(b"\xff" * 64)
    until(lambda: "taints" in machine.devices()["gpu-0000-06-00-0"], what="the loss")
    assert {taint["key"] for taint in machine.devices()["gpu-0000-06-00-0"]["taints"]} == {"gpu.amd.com/gpu-lost"}


HARD = """\
version: rules/v1
rules:
  - {match: {vendors: [amd]}, replicas: 4, enforcement: hard}
"""
POD = "3ad3a3f5-4b5e-4f9b-9f5e-0d8a1c2b3e01"


@pytest.mark.long
def test_a_share_limits_its_pod_and_a_limit_that_is_lost_is_set_again_even_after_the_agent_was_killed(
    machine: Machine, tmp_path: Path
) -> None:
    machine.tree.write(CARD)
    cgroups = DmemTree(Path(machine.tree.roots.sys), {VRAM: CARD.memory_bytes})
    pod = cgroups.pod(POD)
    for folder in reversed([one for one in pod.parents if (one / "cgroup.subtree_control").exists()]):
        cgroups.write(folder / "cgroup.subtree_control", "+dmem")
    limits, limited = pod / "dmem.max", f"{VRAM} {48 << 30}\n"
    (rules := tmp_path / "sharing.yaml").write_text(HARD)
    machine.start("--sharing-config", str(rules))
    until(machine.devices, what="the GPU")
    (device,) = machine.devices().values()
    assert device["attributes"]["type"] == {"string": "amdgpu-share"}
    assert device["attributes"]["enforcement"] == {"string": "hard"}
    plugin = machine.here.kubelet.wait_registered(AMD_DRIVER)
    claim = machine.share(device["name"], POD)
    assert isinstance(plugin.prepare([claim])[claim.uid], tuple | list)
    assert limits.read_text() == limited
    limits.write_text(f"{VRAM} max\n")
    until(lambda: limits.read_text() == limited, what="the limit again")
    until(lambda: "DeviceMemoryLimitLost" in reasons(machine), what="an Event about it")
    machine.here.end(machine.here.agents[-1], signal.SIGKILL)
    limits.write_text(f"{VRAM} max\n")
    machine.start("--sharing-config", str(rules))
    until(lambda: limits.read_text() == limited, what="the limit again")
    plugin = machine.here.kubelet.wait_registered(AMD_DRIVER)
    assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert limits.read_text().startswith(f"{VRAM} max\n")


def reasons(machine: Machine) -> set[str]:
    return {event["reason"] for event in machine.here.api.items(EVENTS)}


def test_shares_of_one_gpu_use_different_compute_units_where_their_claims_ask_for_it(
    machine: Machine, tmp_path: Path
) -> None:
    machine.tree.write(CARD)
    (rules := tmp_path / "sharing.yaml").write_text(
        "version: rules/v1\nrules: [{match: {vendors: [amd]}, replicas: 4}]"
    )
    machine.start("--sharing-config", str(rules))
    until(machine.devices, what="the GPU")
    (name,) = machine.devices()
    plugin = machine.here.kubelet.wait_registered(AMD_DRIVER)
    claims = [machine.share(name, POD, computeUnits={"count": count}) for count in (76, 100)]
    claims.append(machine.share(name, POD))
    for claim in claims:
        assert not isinstance(plugin.prepare([claim])[claim.uid], str)
    found = {}
    for path in machine.here.kubelet.cdi_dir.glob("*.json"):
        (device,) = json.loads(path.read_text())["devices"]
        found[path.stem.rpartition("_")[2]] = device["containerEdits"].get("env", [])
    masks = ["HSA_CU_MASK=0:0-75"], ["HSA_CU_MASK=0:76-175"], []
    assert found == dict(zip((claim.uid for claim in claims), masks, strict=True))
