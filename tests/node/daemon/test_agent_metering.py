"""Metering from end to end: the real agent process, simulated hardware, a kubelet with pods; what a scrape shows."""

import json
import signal

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from tests.support.agents.agent_process import stage
from tests.support.metering.metered_node import MeteredNode
from tests.support.ports import free_port

GPUS = ("gpu-0000-01-00-0", "gpu-0000-02-00-0")


@pytest.fixture
def node(tmp_path):
    with stage("1.35") as here:
        yield MeteredNode(here, tmp_path)


def claims_of(found):
    return [(one.labels.get("dra_claim_name"), one.labels.get("pod"), one.labels.get("container")) for one in found]


def test_a_gpu_s_series_follow_its_claim_and_pod_and_its_hours_outlive_the_agent(node):
    agent = node.start()
    node.until(lambda: node.scrape("DCGM_FI_DEV_GPU_TEMP"), "a temperature")
    assert claims_of(node.scrape("DCGM_FI_DEV_GPU_TEMP")) == [(None, None, None)]
    assert not node.scrape("DCGM_FI_PROF_GR_ENGINE_ACTIVE")  # only --telemetry=full reads the profiling counters
    pod = node.run("one", "train", GPUS[0])
    node.until(lambda: claims_of(node.scrape("DCGM_FI_DEV_GPU_TEMP")) == [("train", "one", "main")], "the claim")
    (power,) = node.scrape("DCGM_FI_DEV_POWER_USAGE")
    assert power.value == 312.5
    assert power.labels["pod_uid"] == pod["metadata"]["uid"]
    assert power.labels["dra_device_class"] == "gpu.nvidia.com"
    node.end(pod)
    node.until(lambda: claims_of(node.scrape("DCGM_FI_DEV_GPU_TEMP")) == [(None, None, None)], "the claim gone")
    again = node.run("one", "train", GPUS[0])
    node.until(lambda: node.scrape("DCGM_FI_DEV_GPU_TEMP")[0].labels.get("pod_uid") == again["metadata"]["uid"], "anew")

    uid = power.labels["dra_claim_uid"]
    (ended,) = (one for one in node.scrape("dra_claim_allocated_seconds_total") if one.labels["dra_claim_uid"] == uid)
    before = node.scrape("dra_allocated_seconds_total")[0]
    assert (before.labels["namespace"], before.labels["device_class"]) == ("team", "gpu.nvidia.com")
    assert before.value >= ended.value
    node.here.end(agent, signal.SIGKILL)
    node.start()
    node.until(lambda: node.scrape("dra_allocated_seconds_total"), "the hours")
    assert node.scrape("dra_allocated_seconds_total")[0].value > before.value


def test_hours_of_two_namespaces_stay_apart_while_agents_replace_each_other(node):
    """Claims begin in the round after others have ended; an agent is killed, and the one beside it goes on."""
    node.here.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})

    def hours():
        found = {one.labels["namespace"]: one.value for one in node.scrape("dra_allocated_seconds_total")}
        assert all(value >= shown.get(namespace, 0.0) for namespace, value in found.items())
        shown.update(found)
        return found

    shown: dict[str, float] = {}
    first = node.start("--pod-uid", "0" * 36)
    for number in range(3):
        pod = node.run(f"a{number}", f"a{number}", GPUS[0])
        node.until(lambda: "team" in hours(), "the hours of the first claims")
        node.end(pod)
        node.until(lambda: not node.scrape("dra_claim_device_info"), "the page after its end")
        last = node.run(f"b{number}", f"b{number}", GPUS[0], "other")
        node.until(lambda: "other" in hours(), "the hours of the others")
        if number < 2:
            node.end(last)
    node.port = free_port()
    node.start("--pod-uid", "1" * 36)
    node.here.kubelet.wait_registered(NVIDIA_DRIVER, instances=2)
    node.here.end(first, signal.SIGKILL)
    node.until(lambda: "other" in hours(), "the hours that the second agent shows")
    team, other = shown["team"], shown["other"]
    node.until(lambda: hours()["other"] > other, "more hours of the claim that goes on")
    assert shown["team"] == team
    ended = node.scrape("dra_claim_allocated_seconds_total")
    names = {f"{kind}{number}" for kind in "ab" for number in range(3)}
    assert {one.labels["dra_claim_name"] for one in ended} == names
    for namespace in ("team", "other"):
        of_claims = sum(one.value for one in ended if one.labels["namespace"] == namespace)
        assert of_claims == pytest.approx(shown[namespace], abs=1.5)


def test_full_telemetry_reads_profiling_counters_and_hardware_that_hangs_fails_no_scrape(node):
    node.start("--telemetry=full")
    node.until(lambda: node.scrape("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "profiling")
    (age,) = node.scrape("dra_telemetry_age_seconds")
    assert age.value < 10
    document = json.loads((node.folder / "profile.yaml").read_text())
    document["gpus"][0]["health"] = {"hangs": True}
    (node.folder / "new").write_text(json.dumps(document))
    (node.folder / "new").replace(node.folder / "profile.yaml")
    node.until(lambda: node.scrape("dra_telemetry_age_seconds")[0].value > 2, "an age")
    assert node.scrape("DCGM_FI_DEV_GPU_TEMP")[0].value == 41


def test_no_series_are_shown_with_telemetry_off_and_no_common_names_with_dcgm_names_off(node):
    agent = node.start("--telemetry=off")
    node.until(lambda: node.scrape("dra_driver_role_held")[0].value == 1, "the role")
    node.run("one", "train", GPUS[1])
    assert not node.scrape("dra_claim_device_info")
    assert not node.scrape("DCGM_FI_DEV_GPU_TEMP")
    node.here.end(agent, signal.SIGTERM)
    node.start("--dcgm-names=false")
    node.until(lambda: node.scrape("dra_claim_device_info"), "the claim")
    (info,) = node.scrape("dra_claim_device_info")
    assert (info.labels["dra_claim_name"], info.labels["pod"]) == ("train", "one")
    assert not node.scrape("DCGM_FI_DEV_GPU_TEMP")
