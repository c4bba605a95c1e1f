"""A server with its gates off drops fields: the driver detects this, reports it, and works safely without them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.drivers import richer_driver
from cluster.drivers.richer_driver import BLOCKED, NOTED, TAINT
from cluster.machines.hardware import KINDS, machine
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request, template

DROPPED = "the API server dropped fields of our slices"


def one_gpu(agent: Agent, name: str, **more: Any) -> dict[str, Any]:
    uuid = agent.devices()[name]["attributes"]["uuid"]["string"]
    return devices(request("gpu", selector=f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"', **more))


def check_reported(agent: Agent, *fields: str) -> None:
    """Check that these losses are in the log and among the problems; without fields, that there are none."""
    lines = [line for line in agent.daemon.log.read_text().splitlines() if DROPPED in line]
    assert ('dra_driver_problems{code="controller.fields-dropped"} 1.0' in agent.ask("/metrics")) == bool(fields)
    if not fields:
        assert lines == []
    for field in fields:
        assert any(field in line for line in lines), f"the log does not say that {field} was dropped"


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
def test_partitions_on_demand_are_offered_only_where_counters_are_kept(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path, kind: str
) -> None:
    agent = start_agent(**machine(kind, tmp_path, partitioned=[0]), mig="dynamic")
    found = agent.published()
    kinds = [device["attributes"]["type"]["string"] for device in agent.devices().values()]
    assert kinds.count("gpu") == 7, "a GPU that an administrator partitioned is not offered whole, the others are"
    if stage.cluster.keeps_gated:
        check_reported(agent)
        assert len([one for one in found if one["spec"].get("sharedCounters")]) > 0
        assert kinds.count("mig") > 7, "no placement is offered beside those that are there"
    else:
        check_reported(agent, "sharedCounters")
        assert not any(one["spec"].get("sharedCounters") for one in found)
        assert not any(device.get("consumesCounters") for device in agent.devices().values())
        assert kinds.count("mig") == 7, "without counters only partitions that exist may be offered"
    # Every offered device can be allocated at the same time, unless counters forbid it: seven whole GPUs, seven parts.
    stage.create(
        template(
            stage.namespace, "all", devices(request("gpus", count=7), request("parts", "mig.nvidia.com", count=7))
        ),
        pod(stage.namespace, "all", container("main", "all"), templates={"all": "all"}),
    )
    assert len(set(stage.devices(stage.check("all")))) == 14
    # With counters, too, nothing is left of the GPUs.
    stage.create(
        template(stage.namespace, "more", devices(request("part", "mig.nvidia.com"))),
        pod(stage.namespace, "more", container("main", "more"), templates={"more": "more"}),
    )
    stage.pending("more", "cannot allocate all claims")


@pytest.mark.smoke
def test_a_partition_is_made_on_demand_only_where_counters_are_kept(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    agent = start_agent(**machine(KINDS[0], tmp_path, partitioned=[]), mig="dynamic")
    agent.published()
    stage.create(
        template(stage.namespace, "part", devices(request("part", "mig.nvidia.com"))),
        pod(stage.namespace, "user", container("main", "part"), templates={"part": "part"}),
    )
    if stage.cluster.keeps_gated:
        (device,) = stage.devices(stage.check("user"))
        assert "-mig-" in device
    else:
        stage.pending("user", "cannot allocate all claims")


@pytest.mark.smoke
def test_a_tainted_device_is_withheld_where_the_server_drops_taints(
    start_agent: Callable[..., Agent], stage: Stage
) -> None:
    if stage.cluster.gates and stage.cluster.version < "1.35":
        pytest.skip("1.34 keeps taints, but not those with the effect None")
    agent = start_agent(program=[sys.executable, richer_driver.__file__])
    agent.published()
    published = until("the pool as the server keeps it", lambda: kept(agent, gates=stage.cluster.keeps_gated), 15)
    generations = {found["spec"]["pool"]["generation"] for found in agent.slices()}
    if stage.cluster.keeps_gated:
        check_reported(agent)
        assert published[BLOCKED]["taints"][0]["key"] == TAINT
        assert published[NOTED]["taints"][0]["effect"] == "None"
        check_taint(agent, stage)
    else:
        check_reported(agent, "devices.taints")
        # The device that no pod may have is withheld, because no taint can be published. The other device is offered.
        assert NOTED in published
        check_free(agent, stage)
    # The driver does not try again and again.
    assert {found["spec"]["pool"]["generation"] for found in agent.slices()} == generations


def kept(agent: Agent, *, gates: bool) -> dict[str, dict[str, Any]]:
    found = agent.devices()
    assert (BLOCKED in found) == gates, sorted(found)
    return found


def check_taint(agent: Agent, stage: Stage) -> None:
    """Check that the tainted device goes only to pods that tolerate the taint."""
    tolerant = [{"key": TAINT, "operator": "Exists"}]
    stage.create(
        claim(stage.namespace, "blocked", one_gpu(agent, BLOCKED)),
        pod(stage.namespace, "blocked", container("main", "gpu"), claims={"gpu": "blocked"}),
        claim(stage.namespace, "tolerant", one_gpu(agent, BLOCKED, tolerations=tolerant)),
        pod(stage.namespace, "tolerant", container("main", "gpu"), claims={"gpu": "tolerant"}),
    )
    stage.pending("blocked", "cannot allocate all claims")
    stage.check("tolerant")


def check_free(agent: Agent, stage: Stage) -> None:
    """Check that a taint which only informs keeps no pod from the device."""
    stage.create(
        claim(stage.namespace, "noted", one_gpu(agent, NOTED)),
        pod(stage.namespace, "noted", container("main", "gpu"), claims={"gpu": "noted"}),
    )
    stage.check("noted")
