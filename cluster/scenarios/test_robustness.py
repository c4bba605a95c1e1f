"""Crashes, upgrades, outages, reboots: no claim is lost, nothing is left, and no device is used by two pods."""

from __future__ import annotations

import functools
import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.machines.hardware import KINDS, machine
from cluster.machines.nvml_machine import NvmlMachine
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import SHOW, STUBBORN, claim, container, devices, pod, request, template

ONE_GPU = devices(request("gpu"))
PARTITION = devices(request("part", "mig.nvidia.com"))
# How long two agents run side by side: a minute, except in the smoke set of the core lane.
OVERLAP = 60 if os.environ.get("SOAK") or os.environ.get("GATES") != "default" else 15


def _has_seen_deletions(stage: Stage, pods: list[str]) -> bool:
    lines = [line for line in stage.node.kubelet.tail(300).splitlines() if '"SyncLoop DELETE"' in line]
    return all(any(f'"{stage.namespace}/{name}"' in line for line in lines) for name in pods)


def _described(agent: Agent) -> int:
    """Return the number of files about the devices of requests."""
    return sum(path.is_file() for path in (agent.node.cdi / "gpu.nvidia.com-metadata").rglob("*"))


def _prepared(agent: Agent, count: int) -> bool:
    found = len(agent.cdi_files())
    assert found >= count, f"{found} CDI files"
    return True


def test_an_agent_killed_among_fifty_pod_starts_loses_no_claim(
    start_agent: Callable[..., Agent], either_machine: Callable[..., dict[str, Any]], stage: Stage
) -> None:
    agent = start_agent(**either_machine("partitioned", partitioned=range(8)))
    agent.published()
    stage.create(template(stage.namespace, "part", PARTITION))
    names = [f"pod-{number}" for number in range(50)]
    for name in names:
        stage.create(pod(stage.namespace, name, container("main", "part"), templates={"part": "part"}, grace=1))
    for prepared in (10, 25):
        enough = functools.partial(_prepared, agent, prepared)
        # Pods that hit the gap between two agents are retried after 60 to 90 seconds.
        until(f"{prepared} claims prepared", enough, PATIENCE, every=0.01)
        agent.kill()
        agent.start()
    found = [stage.check(name, 180) for name in names]
    taken = [device for one in found for device in stage.devices(one)]
    assert len(set(taken)) == len(names), "one device in two claims"


@pytest.mark.smoke
def test_an_upgrade_is_seamless_while_pods_start_and_stop(
    start_agent: Callable[..., Agent], either_machine: Callable[..., dict[str, Any]], stage: Stage
) -> None:
    old = start_agent(**either_machine("old", cuda=(13, 0)), pod_uid=str(uuid.uuid4()))
    old.published()
    writes = len(old.writes())
    stage.create(template(stage.namespace, "one-gpu", ONE_GPU))
    stage.create(pod(stage.namespace, "kept", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("kept")
    new = start_agent(**either_machine("new", cuda=(13, 1)), pod_uid=str(uuid.uuid4()))
    overlap = time.monotonic() + OVERLAP
    count = 0
    while time.monotonic() < overlap:
        name = f"pod-{count}"
        stage.create(pod(stage.namespace, name, container("main", "gpu"), templates={"gpu": "one-gpu"}))
        stage.check(name)
        stage.delete_pod(name)
        count += 1
    old.stop()
    until(
        "the new agent has published its attributes",
        lambda: {it["attributes"]["cudaDriverVersion"]["version"] for it in new.devices().values()} == {"13.1.0"},
        15,
    )
    stage.check("kept")
    stage.create(pod(stage.namespace, "last", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("last")
    # A kubelet that saw the old instance leave must not have deleted what the new one published.
    assert len(new.writes()) - writes <= 2
    assert not [name for name in new.sockets() if old.daemon.argv[old.daemon.argv.index("--pod-uid") + 1] in name]


def test_unprepare_works_while_the_api_server_is_down(agent: Agent, stage: Stage) -> None:
    stage.create(template(stage.namespace, "one-gpu", ONE_GPU))
    names = [f"pod-{number}" for number in range(4)]
    for name in names:
        used = container("main", "gpu", script=SHOW + STUBBORN)
        stage.create(pod(stage.namespace, name, used, templates={"gpu": "one-gpu"}, grace=20))
    for name in names:
        stage.check(name)
    for name in names:
        stage.cluster.api.delete("Pod", name, stage.namespace)
    # The kubelet can act only on what it knows before the outage; the pods' grace period lasts well into the outage.
    until("the kubelet knows of every deletion", functools.partial(_has_seen_deletions, stage, names), 10)
    stage.cluster.api_server.kill()
    try:
        down = time.monotonic()
        assert len(agent.cdi_files()) == len(names)
        agent.wait_empty(55)
        until("the outage has lasted a minute", lambda: time.monotonic() - down > 60, 61)
    finally:
        stage.cluster.restart_api_server()
    for name in names:
        stage.cluster.api.wait_gone("Pod", name, stage.namespace, seconds=60)
    agent.published()
    stage.create(pod(stage.namespace, "after", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("after")


def test_the_device_of_a_force_deleted_pod_is_used_by_one_container_at_a_time(agent: Agent, stage: Stage) -> None:
    # Once a minute the kubelet unprepares the claims of pods that it has lost, even if their containers still run.
    beats = stage.node.base / f"beats-{stage.namespace}"
    beats.mkdir()
    gpus = {name: device["attributes"] for name, device in agent.devices().items()}
    chosen = min(name for name, it in gpus.items() if it["type"]["string"] == "gpu")
    only = f'device.attributes["gpu.nvidia.com"].uuid == "{gpus[chosen]["uuid"]["string"]}"'

    def start(name: str) -> None:
        used = container("main", "gpu", script=f"{SHOW} while true; do echo {name} >>/beats/log; sleep 0.2; done")
        used["volumeMounts"] = [{"name": "beats", "mountPath": "/beats"}]
        volume = {"name": "beats", "hostPath": {"path": str(beats)}}
        stage.create(claim(stage.namespace, name, devices(request("gpu", selector=only))))
        stage.create(pod(stage.namespace, name, used, claims={"gpu": name}, grace=1, volumes=[volume]))

    start("old")
    stage.check("old")
    # Simulate a runtime that can't kill its container: the shim accepts no requests for thirty seconds.
    shim = stage.shim("old")
    os.kill(shim, signal.SIGSTOP)
    stage.cluster.api.delete("Pod", "old", stage.namespace, grace=0)
    stage.cluster.api.delete("ResourceClaim", "old", stage.namespace)
    forced = time.monotonic()
    start("new")
    until("the old container has run on for thirty seconds", lambda: time.monotonic() > forced + 30, 31)
    assert "new" not in (beats / "log").read_text(), "the device was given to another pod while the old container ran"
    os.kill(shim, signal.SIGCONT)
    assert stage.devices(stage.check("new", 150 - 30)) == [chosen]
    lines = (beats / "log").read_text().split()
    first = lines.index("new")
    assert set(lines[:first]) == {"old"}
    assert set(lines[first:]) == {"new"}, "two containers had the device at one time"


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS if os.environ.get("SOAK") else KINDS[:1])
def test_a_rebooted_node_runs_its_pods_again_with_files_about_their_devices(
    kind: str, start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    options = machine(kind, tmp_path)
    agent = start_agent(**options | {"flags": [*options.get("flags", ()), "--device-metadata", "on"]})
    agent.published()
    stage.create(template(stage.namespace, "one-gpu", ONE_GPU), template(stage.namespace, "part", PARTITION))
    for name, used in (("whole", "one-gpu"), ("part", "part")):
        stage.create(
            pod(stage.namespace, name, container("main", "it"), templates={"it": used}, restartPolicy="Always", grace=1)
        )
    before = {name: stage.devices(stage.check(name)) for name in ("whole", "part")}
    boot = stage.cluster.api.get("Node", stage.node.name)["status"]["nodeInfo"]["bootID"]
    # Containers from before the reboot reported this second or an earlier one.
    down = int(time.time())
    stage.node.reboot()
    assert agent.cdi_files() == []
    assert _described(agent) == 0
    agent.start()
    for name, allocated in before.items():
        until(f"{name} runs again", lambda name=name: stage.seen(name).at > down, 150)
        assert stage.devices(stage.compare(name)) == allocated
        if not stage.cluster.repeats_devices:
            stage.running(name)
    assert stage.cluster.api.get("Node", stage.node.name)["status"]["nodeInfo"]["bootID"] != boot
    assert _described(agent) == len(before)
    agent.published()


def test_a_hanging_library_call_blocks_neither_pods_nor_the_end_of_the_agent(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    hanging = NvmlMachine(tmp_path)
    agent = start_agent(hardware="nvidia", flags=hanging.flags, environment=hanging.environment)
    agent.published()
    stage.create(template(stage.namespace, "one-gpu", ONE_GPU))
    stage.create(pod(stage.namespace, "before", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("before")
    bad = hanging.state.gpus[-1]
    bad.hang("nvmlDeviceGetUUID")
    bad.hang("nvmlDeviceGetVbiosVersion")
    hanging.state.faults["nvmlEventSetWait_v2"] = "hang"
    hanging.write()
    stage.create(pod(stage.namespace, "after", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.check("after")
    for name in ("before", "after"):
        stage.delete_pod(name)
    agent.wait_empty(1)
    # The agent must not wait for the library when it ends either.
    agent.stop()


@pytest.mark.soak
def test_three_hundred_pods_run_through_one_node(
    start_agent: Callable[..., Agent], either_machine: Callable[..., dict[str, Any]], stage: Stage
) -> None:
    agent = start_agent(**either_machine("partitioned", partitioned=range(8)))
    agent.published()
    writes = len(agent.writes())
    stage.create(template(stage.namespace, "part", PARTITION))
    names = [f"pod-{number}" for number in range(300)]
    for name in names:
        stage.create(pod(stage.namespace, name, container("main", "part"), templates={"part": "part"}, grace=1))
    left = set(names)

    def next_ones() -> set[str]:
        phases = {
            it["metadata"]["name"]: it["status"].get("phase") for it in stage.cluster.api.list("Pod", stage.namespace)
        }
        assert "Failed" not in phases.values()
        return {name for name in left if phases.get(name) == "Running"}

    # There are 56 parts, so the other pods queue: each pod that runs is compared, and then makes room.
    while left:
        for name in sorted(until("the next pod runs", next_ones, PATIENCE)):
            stage.compare(name)
            stage.cluster.api.delete("Pod", name, stage.namespace)
            left.remove(name)
    assert len(agent.writes()) == writes
