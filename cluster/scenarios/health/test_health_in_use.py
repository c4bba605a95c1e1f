"""A GPU or a partition fails while pods use it: only what failed is marked, and the pods are told."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.agent import DRIVER, Agent
from cluster.cluster import REPOSITORY
from cluster.machines.faulty_machine import FAULTY, HEALTHY, KEY, FaultyMachine, await_health, events_of, use
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import devices, request

RAISED, CLEARED = 15, 60
BEFORE_HEALTH = "8cfd918"  # the commit of release 0.1.1
QUIET = 600 if os.environ.get("SOAK") else 35


@pytest.fixture(autouse=True)
def needs_taints(stage: Stage) -> None:
    if not stage.cluster.keeps_gated:
        pytest.skip("the server drops taints without the gate")


def tainted(machine: FaultyMachine) -> dict[str, set[str]]:
    """Return the keys of the taints of each device that has any."""
    return {
        name: {taint["key"].rpartition("/")[2] for taint in device["taints"]}
        for name, device in machine.agent.devices().items()
        if device.get("taints")
    }


def test_of_eight_gpus_one_is_lost_under_a_running_pod_and_seven_go_on(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    machine = FaultyMachine(start_agent, tmp_path, partitioned=())
    lost, other = use(stage, "loser", machine.claim_for(0)), use(stage, "other", machine.claim_for(1))
    writes = machine.writes()
    machine.set_health(0, HEALTHY, lost=True)
    until("the lost GPU is tainted", lambda: tainted(machine) == {lost: {"gpu-lost"}}, RAISED)
    await_health(stage, "loser", "Unhealthy", 5)
    (event,) = until("an Event on the pod", lambda: events_of(stage, "loser"), PATIENCE)
    assert "gpu-lost" in event["message"]
    end = time.monotonic() + QUIET
    while time.monotonic() < end:
        assert tainted(machine) == {lost: {"gpu-lost"}}, "another GPU than the lost one is tainted"
        assert machine.writes() <= writes + 1, "slices are written again though nothing changed"
        time.sleep(1)
    assert len(machine.agent.devices()) == 8
    await_health(stage, "other", "Healthy", 5)
    assert not events_of(stage, "other")
    assert use(stage, "third", devices(request("it"))) not in {lost, other}
    stage.delete_pod("loser")
    machine.set_health(0, HEALTHY, lost=False)
    until("the GPU is healthy again", lambda: not tainted(machine), CLEARED)


def test_a_fault_of_a_partition_that_was_made_on_demand_touches_that_partition_alone(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    machine = FaultyMachine(start_agent, tmp_path, partitioned=(), mig="dynamic")
    uuid = machine.agent.devices()[machine.name(0)]["attributes"]["uuid"]["string"]
    terms = (f'parentUUID == "{uuid}"', 'profile == "1g.10gb"')
    spec = devices(
        request("it", "mig.nvidia.com", " && ".join(f'device.attributes["{DRIVER}"].{term}' for term in terms))
    )
    faulty, healthy = use(stage, "faulty", spec), use(stage, "healthy", spec)
    placed = int(faulty.rpartition("-")[2])
    machine.set_health(0, {"xids": [{"code": 95, "gi": placed + 1}]})
    until("the partition is tainted", lambda: tainted(machine), RAISED)
    assert tainted(machine) == {faulty: {"needs-reset", "xid"}}
    await_health(stage, "faulty", "Unhealthy", 5)
    await_health(stage, "healthy", "Healthy", 5)
    until("an Event on the pod", lambda: events_of(stage, "faulty"), PATIENCE)
    assert not events_of(stage, "healthy")
    assert healthy != faulty


def test_a_downgrade_to_a_release_without_health_and_back_keeps_the_fault_and_its_time(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    archive = subprocess.run(
        ["git", "archive", BEFORE_HEALTH, "dra_driver", "deviceclasses"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        pytest.skip("this clone has no history")
    old = tmp_path / "old"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        tar.extractall(old)
    machine = FaultyMachine(start_agent, tmp_path)
    use(stage, "user", machine.claim_for(0))
    machine.set_health(0, FAULTY)
    (before,) = until("the GPU is tainted", lambda: machine.taints(0), RAISED)
    assert before["key"] == KEY
    machine.agent.stop()
    earlier = start_agent(
        hardware="simulated:demo-h100",
        program=[sys.executable, "-P", "-m", "dra_driver"],  # -P: not from the tree that this runs in
        environment={"PYTHONPATH": str(old)},
    )
    until("the old release publishes", lambda: not machine.taints(0), PATIENCE)
    earlier.stop()
    machine.agent.start()
    (after,) = until("the GPU is tainted again", lambda: machine.taints(0), RAISED)
    assert after == before
    machine.set_health(0, HEALTHY)
    until("the GPU is healthy again", lambda: not machine.taints(0), CLEARED)
