"""The kubelet finds the plugin, the API server keeps slices as they were sent, and deleted slices come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent import DRIVER, Agent
from cluster.machines.hardware import NVML, PROFILES, machine
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template

ONE_GPU = devices(request("gpu"))


@pytest.mark.smoke
def test_the_kubelet_registers_the_plugin_and_its_pool_is_published(either_agent: Agent) -> None:
    assert either_agent.metric("dra_driver_registered") == 1
    owner = either_agent.cluster.api.get("Node", "node-1")["metadata"]["uid"]
    for found in either_agent.published():
        assert found["spec"]["nodeName"] == "node-1"
        assert found["spec"]["pool"]["name"] == f"node-1/{DRIVER}"
        assert [one["uid"] for one in found["metadata"]["ownerReferences"]] == [owner]
    kinds = [device["attributes"]["type"]["string"] for device in either_agent.devices().values()]
    assert set(kinds) == {"gpu", "mig"}


@pytest.mark.parametrize("profile", sorted(path.stem for path in PROFILES.glob("*.yaml")))
def test_slices_are_kept_byte_for_byte(start_agent: Callable[..., Agent], profile: str) -> None:
    check_kept(start_agent(hardware=f"simulated:{profile}"))


def test_slices_of_the_fake_library_are_kept_byte_for_byte(start_agent: Callable[..., Agent], tmp_path: Path) -> None:
    check_kept(start_agent(**machine(NVML, tmp_path)))


def check_kept(agent: Agent) -> None:
    """Check what the server answered about each write of the slices that the agent has now."""
    own = {found["metadata"]["uid"] for found in agent.published()}

    def written() -> list[tuple[str, dict[str, Any]]]:
        events = (one for one in agent.cluster.audited("create", "update") if one["responseStatus"]["code"] < 300)
        named = [(event["responseObject"]["metadata"]["uid"], event) for event in events]
        return [(uid, event) for uid, event in named if uid in own]

    until("the audit log has each slice", lambda: {uid for uid, _ in written()} == own, 10)
    for _, event in written():
        assert event["responseObject"]["spec"] == event["requestObject"]["spec"]


def test_slices_come_back_after_a_kubelet_restart(agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "before", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("before")
    wiped = {found["metadata"]["uid"] for found in agent.slices()}
    stage.restart_kubelet()
    until("slices wiped and published anew", lambda: {it["metadata"]["uid"] for it in agent.slices()} - wiped, 60)
    agent.published()
    # The earlier pod still runs and ends well; a new one starts.
    stage.check("before")
    stage.create(pod(stage.namespace, "after", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("after")
    stage.delete_pod("before")
    stage.delete_pod("after")
    agent.wait_empty(5)


def test_slices_come_back_after_thirty_seconds_without_the_agent(agent: Agent, stage: Stage) -> None:
    agent.kill()
    until("the kubelet wipes the slices of a plugin that does not run", lambda: not agent.slices(), 60)
    agent.start()
    agent.published()
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("user")


def test_a_lost_gpu_is_tainted_or_gone_after_one_write(start_agent: Callable[..., Agent], tmp_path: Path) -> None:
    content = yaml.safe_load((PROFILES / "demo-h100.yaml").read_text())
    hardware = tmp_path / "machine.yaml"
    hardware.write_text(yaml.safe_dump(content))
    agent = start_agent(hardware=f"simulated:{hardware}")
    agent.published()
    before, writes = set(agent.devices()), len(agent.writes())

    def usable() -> set[str]:
        """Return the devices without a taint; where the server drops taints, a lost GPU is not published at all."""
        return {name for name, device in agent.devices().items() if not device.get("taints")}

    content["gpus"][0]["lost"] = True
    fresh = hardware.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(content))
    fresh.rename(hardware)
    until("the lost GPU is tainted, or gone from the slices", lambda: len(usable()) == len(before) - 1, 15)
    assert len(agent.writes()) == writes + 1
