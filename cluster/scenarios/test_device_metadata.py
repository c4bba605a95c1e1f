"""Containers read files about their devices: theirs alone, from the start, and gone with the claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.agent import Agent
from cluster.cluster import REPOSITORY
from cluster.machines.hardware import SIMULATED, machine
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import STAY, claim, container, devices, pod, request, template

ATTRIBUTES = "/var/run/kubernetes.io/dra-device-attributes"
READ = f"for file in {ATTRIBUTES}/*/*/*/*; do echo FILE $file; cat $file; done; echo shown; "
CHANGED = f"until grep -q 999.9.9 {ATTRIBUTES}/*/*/*/*; do sleep 0.2; done; "


def test_containers_read_about_the_devices_of_their_own_requests(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    agent = start_agent(**machine(SIMULATED, tmp_path), flags=["--device-metadata", "on"])
    agent.published()
    stage.create(
        template(stage.namespace, "two", devices(request("left"), request("right"))),
        claim(stage.namespace, "direct", devices(request("gpu"))),
        pod(
            stage.namespace,
            "user",
            container("left", ("pair", "left"), script=READ + STAY),
            container("all", "pair", "own", script=READ + STAY),
            templates={"pair": "two"},
            claims={"own": "direct"},
        ),
    )
    stage.running("user")
    left, every = files(stage, "left"), files(stage, "all")
    pair = f"{ATTRIBUTES}/resourceclaimtemplates/pair"
    assert list(left) == [f"{pair}/left/gpu.nvidia.com-metadata.json"]
    assert set(every) == {
        *left,
        f"{pair}/right/gpu.nvidia.com-metadata.json",
        f"{ATTRIBUTES}/resourceclaims/direct/gpu/gpu.nvidia.com-metadata.json",
    }
    for found in every.values():
        (asked,) = found["requests"]
        (device,) = asked["devices"]
        assert device["attributes"] == agent.devices()[device["name"]]["attributes"]
    assert len({d["name"] for found in every.values() for r in found["requests"] for d in r["devices"]}) == 3
    said = claims_wide(stage, agent)
    assert all(f"{path} generation 1: " in said for path in every)
    assert "3 devices described by files of this node" in said
    stage.delete_pod("user")
    agent.wait_empty(1)
    assert [path for path in (agent.node.cdi / "gpu.nvidia.com-metadata").rglob("*") if path.is_file()] == []


def claims_wide(stage: Stage, agent: Agent) -> str:
    """Return what `dra-driver claims -o wide` says on the agent's node."""
    command = [sys.executable, "-m", "dra_driver", "claims", "-n", stage.namespace, "-o", "wide"]
    command += ["--kubeconfig", str(stage.cluster.kubeconfig), "--cdi-root", str(agent.node.cdi)]
    surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "2000"}
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=True).stdout


def files(stage: Stage, name: str) -> dict[str, dict[str, Any]]:
    """Return what a container found: the first object of each file, by its path."""
    lines = until("the container read its files", lambda: _lines(stage, name), PATIENCE)
    return {
        line.removeprefix("FILE "): json.loads(lines[place + 1])
        for place, line in enumerate(lines)
        if line.startswith("FILE ")
    }


def _lines(stage: Stage, name: str) -> list[str]:
    lines = stage.log("user", name).splitlines()
    return lines if "shown" in lines else []


def test_a_running_container_reads_what_changed_and_the_next_claim_of_the_name_has_its_own_file(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    agent = start_agent(**machine(SIMULATED, tmp_path), flags=["--device-metadata", "on"])
    agent.published()
    stage.create(
        claim(stage.namespace, "gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "own", script=CHANGED + READ + STAY), claims={"own": "gpu"}),
    )
    stage.running("user")
    profile = tmp_path / "machine.yaml"
    profile.write_text(profile.read_text().replace("580.126.20", "999.9.9"))
    (found,) = files(stage, "main").values()
    assert found["metadata"]["generation"] == 2
    (device,) = found["requests"][0]["devices"]
    assert device["attributes"]["driverVersion"] == {"version": "999.9.9"}
    before = found["metadata"]["uid"]
    stage.delete_pod("user")
    stage.cluster.api.delete("ResourceClaim", "gpu", stage.namespace)
    until("the claim is gone", lambda: not stage.cluster.api.list("ResourceClaim", stage.namespace), PATIENCE)
    stage.create(
        claim(stage.namespace, "gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "own", script=READ + STAY), claims={"own": "gpu"}),
    )
    stage.running("user")
    (found,) = files(stage, "main").values()
    assert found["metadata"]["uid"] != before
    assert found["metadata"]["generation"] == 1
