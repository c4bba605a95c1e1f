"""Labels of measurements on a real cluster: to which claim each series belongs, while pods and claims come and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.agent import Agent
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request, template
from tests.support.metering.snapshots import Sample, samples

SOON = 20.0
WHOLE, SHARED, PARTITIONED = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
RULES = """\
version: rules/v1
rules:
  - match: {devices: ["gpu-0000-02-*"]}
    replicas: 4
    sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
"""
MEASURED = {
    "temperatureC": 41, "powerW": "312.5", "gpuPercent": 80, "memoryUsedBytes": 8 << 30, "graphicsRatio": "0.5",
    "instance": {"memoryUsedBytes": 1 << 30, "graphicsRatio": "0.25"},
}  # fmt: skip


@pytest.fixture
def agent(start_agent: Callable[..., Agent], tmp_path: Path) -> Agent:
    """The agent of a machine with a whole GPU, one that is shared and one that is partitioned, all of them measured."""
    mig = [{"profile": "3g.40gb", "start": 0}, {"profile": "1g.10gb", "start": 4}]
    gpus = [{"pci": WHOLE}, {"pci": SHARED}, {"pci": PARTITIONED, "mig": mig}]
    defaults = {"model": "h100-sxm5-80gb", "metering": MEASURED}
    profile = {"about": "measured", "driverVersion": "580.126.20", "gpuDefaults": defaults, "gpus": gpus}
    (tmp_path / "profile.yaml").write_text(json.dumps(profile))
    (tmp_path / "rules.yaml").write_text(RULES)
    flags = ["--telemetry", "full", "--telemetry-interval", "1", "--sharing-config", str(tmp_path / "rules.yaml")]
    started = start_agent(hardware=f"simulated:{tmp_path}/profile.yaml", flags=flags)
    started.published()
    return started


def shown(agent: Agent, name: str, **labels: str) -> list[Sample]:
    """Return the samples of a name that have these labels."""
    found = [one for one in samples(agent.ask("/metrics").encode()) if one.name == name]
    return [one for one in found if labels.items() <= one.labels.items()]


def owners(found: list[Sample]) -> set[tuple[str, str, str]]:
    """Return to whom series belong: claim, pod and container."""
    return {tuple(one.labels.get(label, "") for label in ("dra_claim_name", "pod", "container")) for one in found}


def await_owners(agent: Agent, name: str, wanted: set[tuple[str, str, str]], **labels: str) -> list[Sample]:
    until(f"{name} is of {sorted(wanted)}", lambda: owners(shown(agent, name, **labels)) == wanted, SOON)
    return shown(agent, name, **labels)


def uuid_of(agent: Agent, address: str) -> str:
    """Return the UUID that an address has in every series."""
    bus = f"00000000:{address[5:].upper()}"
    return shown(agent, "DCGM_FI_DEV_GPU_TEMP", pci_bus_id=bus)[0].labels["UUID"]


def test_the_series_of_a_gpu_follow_the_pods_of_one_claim_and_the_claims_of_one_name(
    agent: Agent, stage: Stage
) -> None:
    uuid = uuid_of(agent, WHOLE)
    power = "DCGM_FI_DEV_POWER_USAGE"
    assert owners(shown(agent, power, UUID=uuid)) == {("", "", "")}
    only = f'device.attributes["resource.kubernetes.io"].pciBusID == "{WHOLE}"'
    spec = devices(request("gpu", selector=only))
    uids = []
    stage.create(claim(stage.namespace, "train", spec))
    for name in ("first", "second"):  # the claim stays, its pods change
        stage.create(pod(stage.namespace, name, container("main", "gpu"), claims={"gpu": "train"}))
        uid = stage.running(name)["metadata"]["uid"]
        (one,) = await_owners(agent, power, {("train", name, "main")}, UUID=uuid)
        assert (one.value, one.labels["pod_uid"], one.labels["namespace"]) == (312.5, uid, stage.namespace)
        uids.append(one.labels["dra_claim_uid"])
        stage.delete_pod(name)
        await_owners(agent, power, {("", "", "")}, UUID=uuid)
    assert len(set(uids)) == 1
    hours = sum(one.value for one in shown(agent, "dra_allocated_seconds_total", namespace=stage.namespace))
    stage.cluster.api.delete("ResourceClaim", "train", stage.namespace)
    until("the claim is gone", lambda: not stage.cluster.api.list("ResourceClaim", namespace=stage.namespace), SOON)
    stage.create(claim(stage.namespace, "train", spec))  # another claim of the same name
    stage.create(pod(stage.namespace, "first", container("main", "gpu"), claims={"gpu": "train"}))
    stage.running("first")
    (one,) = await_owners(agent, power, {("train", "first", "main")}, UUID=uuid)
    assert one.labels["dra_claim_uid"] not in uids
    total = sum(one.value for one in shown(agent, "dra_allocated_seconds_total", namespace=stage.namespace))
    assert total >= hours > 0


def test_two_claims_on_one_gpu_have_a_line_each_and_what_is_measured_of_both_has_one(
    agent: Agent, stage: Stage
) -> None:
    uuid = uuid_of(agent, SHARED)
    stage.create(template(stage.namespace, "share", devices(request("share", "gpu-share.nvidia.com"))))
    for name in ("one", "two"):
        stage.create(pod(stage.namespace, name, container("main", "share"), templates={"share": "share"}))
        stage.running(name)
    found = until(
        "both have a line",
        lambda: [f for f in [shown(agent, "dra_claim_device_info", UUID=uuid)] if len(f) == 2] or None,
        SOON,
    )[0]
    assert {one.labels["pod"] for one in found} == {"one", "two"}
    assert len({one.labels["dra_claim_uid"] for one in found}) == 2
    assert len({(one.labels["dra_device_name"], one.labels.get("dra_share_id", "")) for one in found}) == 2
    assert owners(shown(agent, "DCGM_FI_DEV_POWER_USAGE", UUID=uuid)) == {("", "", "")}
    used = shown(agent, "DCGM_FI_DEV_FB_USED", UUID=uuid)
    assert sum(one.value for one in used) == 8192, "the parts of the claims and the rest are the device's value"
    stage.delete_pod("one")
    await_owners(agent, "DCGM_FI_DEV_POWER_USAGE", {tuple(_only(agent, "two"))}, UUID=uuid)


def _only(agent: Agent, name: str) -> tuple[str, str, str]:
    (one,) = [one for one in shown(agent, "dra_claim_device_info") if one.labels.get("pod") == name]
    return one.labels["dra_claim_name"], name, "main"


def test_partitions_have_the_labels_of_their_own_claims_and_the_gpu_has_none(agent: Agent, stage: Stage) -> None:
    uuid = uuid_of(agent, PARTITIONED)
    for name, profile in (("large", "3g.40gb"), ("small", "1g.10gb")):
        only = f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'
        stage.create(claim(stage.namespace, name, devices(request("part", "mig.nvidia.com", only))))
        stage.create(pod(stage.namespace, name, container("main", "part"), claims={"part": name}))
        stage.running(name)
    for name, profile in (("large", "3g.40gb"), ("small", "1g.10gb")):
        (one,) = await_owners(
            agent, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", {(name, name, "main")}, UUID=uuid, GPU_I_PROFILE=profile
        )
        assert (one.value, one.labels["dra_mig_profile"]) == (0.25, profile)
    (power,) = shown(agent, "DCGM_FI_DEV_POWER_USAGE", UUID=uuid)
    assert owners([power]) == {("", "", "")}
    parts = {one.labels["profile"]: one.value for one in shown(agent, "dra_gpu_part")}
    assert parts["3g.40gb"] == 0.5
    stage.delete_pod("small")
    await_owners(agent, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", {("", "", "")}, UUID=uuid, GPU_I_PROFILE="1g.10gb")
    await_owners(
        agent, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", {("large", "large", "main")}, UUID=uuid, GPU_I_PROFILE="3g.40gb"
    )


PARTITIONS, SHARES = 7, 4


def divided(folder: Path, **more: object) -> None:
    """Write a profile of one GPU with seven partitions."""
    mig = [{"profile": "1g.10gb", "start": start} for start in range(PARTITIONS)]
    defaults = {"model": "h100-sxm5-80gb", "metering": MEASURED, "mig": mig, **more}
    profile = {"about": "seven", "driverVersion": "580.126.20", "gpuDefaults": defaults, "gpus": [{"pci": PARTITIONED}]}
    (folder / "new").write_text(json.dumps(profile))
    (folder / "new").replace(folder / "profile.yaml")


def test_28_tenants_on_seven_partitions_keep_their_labels_while_some_leave_the_agent_dies_and_the_hardware_hangs(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    if stage.cluster.compares_other_devices:
        pytest.skip("the scheduler of 1.34.4 compares the capacity of a slice's first device")
    divided(tmp_path)
    (tmp_path / "rules.yaml").write_text(
        "version: rules/v1\nrules: [{match: {types: [mig]}, replicas: 4, sharing: {strategy: TimeSlicing}}]\n"
    )
    flags = ["--telemetry", "full", "--telemetry-interval", "1", "--sharing-config", str(tmp_path / "rules.yaml")]
    agent = start_agent(hardware=f"simulated:{tmp_path}/profile.yaml", flags=flags)
    agent.published()
    names = [f"tenant-{number:02}" for number in range(PARTITIONS * SHARES)]
    stage.create(template(stage.namespace, "share", devices(request("share", "mig-share.nvidia.com"))))
    stage.create(
        *(pod(stage.namespace, one, container("main", "share"), templates={"share": "share"}) for one in names)
    )
    for name in names:
        stage.running(name, 180)
    check_tenants(agent, set(names))
    partitions = Counter(one.labels["GPU_I_ID"] for one in shown(agent, "dra_claim_device_info"))
    assert set(partitions.values()) == {SHARES}
    assert len(partitions) == PARTITIONS
    gone, left = set(names[::4]), set(names) - set(names[::4])
    for name in gone:
        stage.delete_pod(name)
    check_tenants(agent, left)
    hours = sum(one.value for one in shown(agent, "dra_allocated_seconds_total", namespace=stage.namespace))
    agent.kill()
    agent.start()
    check_tenants(agent, left)
    after = sum(one.value for one in shown(agent, "dra_allocated_seconds_total", namespace=stage.namespace))
    assert after >= hours > 0
    divided(tmp_path, health={"hangs": True})
    until("the readings are old", lambda: max(ages(agent), default=0.0) > 3, SOON)
    last = left.pop()
    stage.delete_pod(last)
    check_tenants(agent, left)
    assert shown(agent, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "the last readings are still there"


def check_tenants(agent: Agent, names: set[str]) -> None:
    """Wait until exactly these pods have a share each, by claims of their own, and no sum counts a partition twice."""
    until(
        f"{len(names)} tenants are labelled",
        lambda: Counter(one.labels["pod"] for one in shown(agent, "dra_claim_device_info")) == Counter(names),
        SOON,
    )
    claims = {one.labels["dra_claim_uid"] for one in shown(agent, "dra_claim_device_info")}
    assert len(claims) == len(names)
    used = shown(agent, "DCGM_FI_DEV_FB_USED")
    assert sum(one.value for one in used) == PARTITIONS * 1024, "each partition's memory counts once"


def ages(agent: Agent) -> list[float]:
    return [one.value for one in shown(agent, "dra_telemetry_age_seconds")]
