"""A GPU becomes faulty: new pods do not get it, the pods that use it are told, and it comes back when it is healthy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY
from cluster.machines.faulty_machine import (
    FAULTY,
    HEALTHY,
    KEY,
    FaultyMachine,
    await_health,
    events_of,
    health_of,
    use,
    version,
)
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import claim, container, pod

RAISED, CLEARED = 15, 60  # a source is polled every 10 s; a fault ends after three good readings
LASTING = 600 if os.environ.get("SOAK") else 35  # the kubelet takes a device for unknown after 30 s without a report
FAULTY_GPU, FREE = 0, 1


@pytest.fixture
def machine(start_agent: Callable[..., Agent], tmp_path: Path) -> FaultyMachine:
    return FaultyMachine(start_agent, tmp_path)


@pytest.mark.smoke
def test_a_faulty_gpu_goes_to_no_new_pod(machine: FaultyMachine, stage: Stage) -> None:
    spec = machine.claim_for(FAULTY_GPU)
    until("the writes of the start have ended", lambda: machine.taints(FAULTY_GPU) == [], 10)
    writes, generations = machine.writes(), machine.generations()
    machine.set_health(FAULTY_GPU, FAULTY)
    since = await_fault(machine, stage)
    check_quiet(machine, writes + 1)
    stage.create(
        claim(stage.namespace, "wanted", spec),
        pod(stage.namespace, "waiting", container("main", "gpu"), claims={"gpu": "wanted"}),
    )
    stage.pending("waiting", "cannot allocate all claims")
    if stage.cluster.keeps_gated:
        assert machine.generations() == generations, "the first taint made a new generation of the pool"
        machine.agent.stop()
        machine.agent.start()
        assert [one["timeAdded"] for one in machine.taints(FAULTY_GPU)] == since, (
            "a restart changed when the fault began"
        )
    machine.set_health(FAULTY_GPU, HEALTHY)
    until(
        "the GPU is healthy again",
        lambda: machine.name(FAULTY_GPU) in machine.agent.devices() and not machine.taints(FAULTY_GPU),
        CLEARED,
    )
    assert stage.devices(stage.check("waiting")) == [machine.name(FAULTY_GPU)]


@pytest.mark.smoke
def test_a_pod_is_told_that_its_gpu_is_faulty_and_healthy_again(
    machine: FaultyMachine, stage: Stage, tmp_path: Path
) -> None:
    use(stage, "user", machine.claim_for(FAULTY_GPU))
    if not stage.cluster.keeps_gated:
        check_kept_while_used(machine, stage)
        return
    await_health(stage, "user", "Healthy", PATIENCE)
    before = version(stage, "user")
    machine.set_health(FAULTY_GPU, FAULTY)
    until("the GPU is tainted", lambda: machine.taints(FAULTY_GPU), RAISED)
    await_health(stage, "user", "Unhealthy", 5)
    check_doctor(stage, tmp_path)
    (event,) = until("an Event on the pod", lambda: events_of(stage, "user"), PATIENCE)
    assert "needs-reset" in event["message"]
    written = version(stage, "user")
    assert written != before
    end = time.monotonic() + LASTING
    while time.monotonic() < end:
        assert health_of(stage, "user") == "Unhealthy"
        assert version(stage, "user") == written, "the pod's status was written again though nothing changed"
        time.sleep(1)
    machine.set_health(FAULTY_GPU, HEALTHY)
    await_health(stage, "user", "Healthy", CLEARED)
    assert machine.taints(FAULTY_GPU) == []


def test_a_gpu_is_cordoned_by_hand(machine: FaultyMachine, stage: Stage) -> None:
    spec = machine.claim_for(FREE)
    machine.agent.command("cordon", machine.name(FREE), "--reason", "fan noise")
    if stage.cluster.keeps_gated:
        (taint,) = until("the GPU is tainted", lambda: machine.taints(FREE), 10)
        assert (taint["key"], taint["effect"]) == ("gpu.nvidia.com/cordoned", "NoSchedule")
    else:
        until("the GPU is withheld", lambda: machine.name(FREE) not in machine.agent.devices(), 10)
    stage.create(
        claim(stage.namespace, "wanted", spec),
        pod(stage.namespace, "waiting", container("main", "gpu"), claims={"gpu": "wanted"}),
    )
    stage.pending("waiting", "cannot allocate all claims")
    machine.agent.stop()
    machine.agent.start()
    stage.pending("waiting", "cannot allocate all claims")
    machine.agent.command("uncordon", machine.name(FREE))
    assert stage.devices(stage.check("waiting")) == [machine.name(FREE)]


MANY: dict[str, Any] = {
    **FAULTY, "eccUncorrectable": 2, "sramThresholdExceeded": True, "remapFailed": True, "remapPending": True,
    "xids": [{"code": 95}],
}  # fmt: skip
BLOCKING = ["needs-reset", "xid", "ecc-uncorrectable", "ecc-threshold", "row-remap-failed"]


def test_the_number_and_the_effects_of_taints_are_what_the_version_allows(machine: FaultyMachine, stage: Stage) -> None:
    if not stage.cluster.keeps_gated:
        pytest.skip("the server drops taints without the gate")
    machine.set_health(FAULTY_GPU, MANY)
    expected = {**dict.fromkeys(BLOCKING, "NoSchedule"), "row-remap-pending": "None"}
    if stage.cluster.version == "1.34":
        expected = dict.fromkeys(BLOCKING[:4], "NoSchedule")

    def found() -> dict[str, str]:
        return {one["key"].rpartition("/")[2]: one["effect"] for one in machine.taints(FAULTY_GPU)}

    until("the GPU has its taints", lambda: found() == expected, RAISED)
    check_quiet(machine, machine.writes())


def await_fault(machine: FaultyMachine, stage: Stage) -> list[str]:
    """Wait until the faulty GPU is tainted, or withheld if the server keeps no taints; return when it became faulty."""
    if not stage.cluster.keeps_gated:
        until("the GPU is withheld", lambda: machine.name(FAULTY_GPU) not in machine.agent.devices(), RAISED)
        return []
    (taint,) = until("the GPU is tainted", lambda: machine.taints(FAULTY_GPU), RAISED)
    assert (taint["key"], taint["effect"]) == (KEY, "NoSchedule")
    assert not machine.taints(FREE), "a healthy GPU is tainted as well"
    return [taint["timeAdded"]]


def check_quiet(machine: FaultyMachine, writes: int) -> None:
    """Check that the change took at most this many writes in all, and that none follow."""
    until("the change is settled", lambda: machine.writes() == writes, 10)
    end = time.monotonic() + LASTING
    while time.monotonic() < end:
        assert machine.writes() == writes, "slices are written again though nothing changed"
        time.sleep(1)


def check_kept_while_used(machine: FaultyMachine, stage: Stage) -> None:
    """Check, where the server keeps no taints, that a faulty GPU stays published for as long as a claim holds it."""
    writes = machine.writes()
    machine.set_health(FAULTY_GPU, FAULTY)
    machine.set_health(FREE, FAULTY)
    until("the free faulty GPU is withheld", lambda: machine.name(FREE) not in machine.agent.devices(), RAISED)
    check_quiet(machine, writes + 1)
    assert machine.name(FAULTY_GPU) in machine.agent.devices()
    stage.delete_pod("user")
    # The kubelet may still have reported the claim when it was unprepared: then the agent looks again within a minute.
    until("the faulty GPU is withheld too", lambda: machine.name(FAULTY_GPU) not in machine.agent.devices(), 90)


def check_doctor(stage: Stage, folder: Path) -> None:
    """Check that the doctor finds the faulty GPU, and that the API server accepts the rule that it prints.

    1.34 has no rules that delete nothing, and up to 1.36 no rules are served by default: then none is printed.
    """
    command = [sys.executable, "-m", "dra_driver", "doctor", "--output", "json", "--node-name", stage.node.name]
    command += ["--kubeconfig", str(stage.cluster.kubeconfig), "--kubelet-plugins-directory-path", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=False)
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["id"] == "health-tainted")
    served = "devicetaintrules" in stage.cluster.kubectl("api-resources", "--api-group=resource.k8s.io", "-o", "name")
    if stage.cluster.version == "1.34" or not served:
        assert "kubectl create" not in found["remedy"]
        return
    rule = folder / "rule.json"
    rule.write_text(found["remedy"].partition("<<< '")[2].rstrip("'"))
    assert "created" in stage.cluster.kubectl("create", "--dry-run=server", "-f", str(rule))
