"""Several pods on one GPU: replicas with and without a scheduler that counts shares, memory shares, MIG together with
replicas. Checked are what users of a share see, who has to wait, and that nothing is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.machines.nvml_machine import NvmlMachine
from cluster.sandbox import hierarchies, until
from cluster.stage import Stage, results
from cluster.workload import claim, container, devices, pod, request, template

PROFILE = REPOSITORY / "examples/sharing/node/profile.yaml"
RULES = """\
version: rules/v1
rules:
  - match: {devices: ["gpu-0000-1b-*"]}
    exclusive: true
  - match: {devices: ["gpu-0000-61-*"]}
    memory: {default: 10Gi, min: 1Gi, step: 1Gi}
  - replicas: 4
    sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
"""


@pytest.fixture
def sharing_agent(start_agent: Callable[..., Agent], tmp_path: Path) -> Agent:
    """The agent of a machine whose GPUs are shared in every possible way, except for one that is not shared."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    started = start_agent(hardware=f"simulated:{PROFILE}", flags=["--sharing-config", str(rules), "--mig", "static"])
    started.published()
    return started


def tenants(stage: Stage, names: list[str], spec: dict[str, Any]) -> None:
    """Create pods that each request one share."""
    stage.create(template(stage.namespace, "share", spec))
    for name in names:
        stage.create(pod(stage.namespace, name, container("main", "share"), templates={"share": "share"}))


def uuid_of(agent: Agent, device: str) -> str:
    return str(agent.devices()[device]["attributes"]["uuid"]["string"])


def shares(stage: Stage, name: str) -> list[dict[str, Any]]:
    """Return what was allocated to a running pod."""
    found = stage.check(name)
    return [result for held in stage.claims(found).values() for result in results(held)]


@pytest.mark.smoke
def test_four_pods_share_a_gpu_by_replicas_and_the_fifth_waits(
    sharing_agent: Agent, stage: Stage, cluster: Cluster
) -> None:
    published = sharing_agent.devices()
    of_gpu = [name for name in published if name.startswith("gpu-0000-43-")]
    assert len(of_gpu) == (1 if cluster.gates or cluster.version >= "1.36" else 4), of_gpu
    only = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:43:00.0"'
    names = [f"tenant-{index}" for index in range(5)]
    tenants(stage, names, devices(request("share", "gpu-share.nvidia.com", only)))
    until("four of five pods run", lambda: len(_running(stage)) == 4, 130)
    (waiting,) = sorted(set(names) - _running(stage))
    stage.pending(waiting, "cannot allocate all claims")
    held = {name: shares(stage, name) for name in _running(stage)}
    identities = [(one["device"], one.get("shareID")) for found in held.values() for one in found]
    assert len(set(identities)) == 4, "each has a share of its own"
    assert {uuid_of(sharing_agent, device) for device, _ in identities} == {uuid_of(sharing_agent, of_gpu[0])}
    assert len({tuple(sorted(stage.seen(name).nodes)) for name in held}) == 1, "all see the same GPU"
    stage.delete_pod(min(held))
    stage.check(waiting)


def test_a_claim_for_whole_gpus_never_gets_a_share(sharing_agent: Agent, stage: Stage) -> None:
    for name, kind, count in (
        ("whole", "gpu.nvidia.com", 1),
        ("two", "gpu.nvidia.com", 2),
        ("part", "mig.nvidia.com", 1),
    ):
        stage.create(template(stage.namespace, name, devices(request("gpu", kind, count=count))))
        stage.create(pod(stage.namespace, name, container("main", "gpu"), templates={"gpu": name}))
    stage.pending("part", "cannot allocate all claims")
    whole = {name for name, device in sharing_agent.devices().items() if _type(device) == "gpu"}
    assert "gpu-0000-1b-00-0" in whole
    for name, count in (("whole", 1), ("two", 2)):
        if count <= len(whole):
            continue
        stage.pending(name, "cannot allocate all claims")
    assert set(stage.devices(stage.check("whole"))) <= whole


def test_memory_shares_are_packed_until_the_gpu_is_full(sharing_agent: Agent, stage: Stage, cluster: Cluster) -> None:
    if not cluster.gates and cluster.version < "1.36":
        assert _type(sharing_agent.devices()["gpu-0000-61-00-0"]) == "gpu", "whole where shares are not kept"
        return
    for name, amount in (("large", "40Gi"), ("medium", "30000Mi"), ("late", "12Gi")):
        spec = devices(request("share", "gpu-share-memory.nvidia.com", capacity={"requests": {"memory": amount}}))
        stage.create(template(stage.namespace, name, spec))
        stage.create(pod(stage.namespace, name, container("main", "share"), templates={"share": name}))
        if name != "late":
            stage.running(name)
    stage.pending("late", "cannot allocate all claims")
    taken = {name: shares(stage, name)[0]["consumedCapacity"]["memory"] for name in ("large", "medium")}
    assert taken == {"large": "40Gi", "medium": "30Gi"}, "rounded up to the next step"
    tenants(
        stage,
        ["modest"],
        devices(request("share", "gpu-share-memory.nvidia.com", capacity={"requests": {"memory": "1"}})),
    )
    assert shares(stage, "modest")[0]["consumedCapacity"]["memory"] == "1Gi"
    stage.delete_pod("large")
    (late,) = shares(stage, "late")
    assert (late["device"], late["consumedCapacity"]["memory"]) == ("gpu-0000-61-00-0", "12Gi")


def test_twenty_eight_tenants_share_one_gpu_cut_into_seven(sharing_agent: Agent, stage: Stage) -> None:
    names = [f"tenant-{index:02d}" for index in range(29)]
    tenants(stage, names, devices(request("share", "mig-share.nvidia.com")))
    until("28 of 29 pods run", lambda: len(_running(stage)) == 28, 400)
    (waiting,) = sorted(set(names) - _running(stage))
    stage.pending(waiting, "cannot allocate all claims")
    held = {name: shares(stage, name) for name in sorted(_running(stage))}
    found = [one for results_ in held.values() for one in results_]
    assert len({(one["device"], one.get("shareID")) for one in found}) == 28
    uuids = Counter(uuid_of(sharing_agent, one["device"]) for one in found)
    assert sorted(uuids.values()) == [4] * 7, "four on each partition"
    parents = {sharing_agent.devices()[one["device"]]["attributes"]["parentUUID"]["string"] for one in found}
    assert len(parents) == 1, "and all on one GPU"
    assert len(sharing_agent.cdi_files()) == 28


def test_changed_rules_leave_running_pods_their_shares(sharing_agent: Agent, stage: Stage, tmp_path: Path) -> None:
    only = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:52:00.0"'
    tenants(stage, ["tenant"], devices(request("share", "gpu-share.nvidia.com", only)))
    (held,) = shares(stage, "tenant")
    (tmp_path / "new.yaml").write_text("version: rules/v1\nrules: [{exclusive: true}]\n")
    (tmp_path / "new.yaml").replace(tmp_path / "rules.yaml")
    until(
        "other GPUs are whole again",
        lambda: _type(sharing_agent.devices().get("gpu-0000-43-00-0", {})) == "gpu",
        30,
    )
    assert not any(name.startswith("gpu-0000-52-") for name in sharing_agent.devices()), (
        "not offered while it is shared"
    )
    stage.compare("tenant")
    stage.delete_pod("tenant")
    until(
        f"{held['device']} is whole again",
        lambda: _type(sharing_agent.devices().get("gpu-0000-52-00-0", {})) == "gpu",
        90,
    )


def test_the_driver_keeps_each_pod_to_its_share_of_memory(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    machine = NvmlMachine(tmp_path, partitioned=())
    for gpu in machine.state.gpus:
        gpu.facts["memory_limits"] = 1
    machine.write()
    cgroups = Path(machine.node.roots.sys) / "fs/cgroup"
    cgroups.parent.mkdir()
    cgroups.symlink_to(next(path for path in hierarchies() if path.name in {"memory", "cgroup"}))
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: rules/v1\nrules: [{replicas: 4, enforcement: hard}]\n")
    flags = [*machine.flags, "--sharing-config", str(rules)]
    agent = start_agent(hardware="nvidia", flags=flags, environment=machine.environment)
    agent.published()
    device = min(agent.devices())
    assert agent.devices()[device]["attributes"]["enforcement"]["string"] == "hard"
    share = int(machine.state.gpus[0].facts["memory_bytes"]) // 4

    def limits() -> dict[str, int]:
        found = {}
        for gpu in machine.state.read().gpus:
            for cgroup, limit in gpu.memory_limits().items():
                if Path(cgroup).exists():
                    found[Path(cgroup).name.removeprefix("pod")] = limit
        return found

    only = f'device.attributes["gpu.nvidia.com"].uuid == "{uuid_of(agent, device)}"'
    spec = devices(request("share", "gpu-share.nvidia.com", only))
    tenants(stage, ["first", "second"], spec)
    stage.create(claim(stage.namespace, "joint", spec))
    stage.create(pod(stage.namespace, "third", container("main", "share"), claims={"share": "joint"}))
    uids = [stage.check(name)["metadata"]["uid"] for name in ("first", "second", "third")]
    assert limits().keys() == set(uids)
    assert all(share - (1 << 20) <= limit <= share for limit in limits().values()), limits()
    stage.create(pod(stage.namespace, "fourth", container("main", "share"), claims={"share": "joint"}))
    uids.append(stage.check("fourth")["metadata"]["uid"])
    until("the pod that came to a prepared claim is limited as well", lambda: limits().keys() == set(uids), 5)
    stage.delete_pod("first")
    until("its limit has ended with it", lambda: limits().keys() == set(uids[1:]), 30)


def _running(stage: Stage) -> set[str]:
    pods = stage.cluster.api.list("Pod", stage.namespace)
    return {found["metadata"]["name"] for found in pods if found.get("status", {}).get("phase") == "Running"}


def _type(device: dict[str, Any]) -> str:
    return str(device.get("attributes", {}).get("type", {}).get("string", ""))
