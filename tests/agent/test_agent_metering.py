"""Metering from end to end: the real agent process, simulated hardware, a kubelet with pods; what a scrape shows."""

import json
import signal
import socket
import urllib.request
from urllib.error import URLError

import pytest

from dra_driver.embedded.api.kinds import CLAIMS
from dra_driver.model.names import NVIDIA_DRIVER, pool_name
from tests.support.agent_process import NODE, stage
from tests.support.metering_scenes import samples
from tests.support.waiting import until

GPUS = ("gpu-0000-01-00-0", "gpu-0000-02-00-0")


def profile(folder, **metering):
    """Write a profile of two H100s; `metering` is what the first one measures."""
    document = {
        "about": "two GPUs", "driverVersion": "580.126.20", "gpuDefaults": {"model": "h100-sxm5-80gb"},
        "gpus": [{"pci": f"0000:0{index}:00.0"} for index in (1, 2)],
    }  # fmt: skip
    usual = {"temperatureC": 41, "powerW": "312.5", "gpuPercent": 80, "graphicsRatio": "0.5"}
    document["gpus"][0]["metering"] = usual | metering
    (folder / "new").write_text(json.dumps(document))
    return (folder / "new").replace(folder / "profile.yaml")


class Scraped:
    """A node with an agent, its pods, and what /metrics shows."""

    def __init__(self, here, folder):
        self.here, self.folder = here, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        profile(folder)
        here.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})

    def start(self, *flags):
        address = f"--metrics-address=127.0.0.1:{self.port}"
        agent = self.here.start(f"simulated:{self.folder}/profile.yaml", address, "--telemetry-interval=1", *flags)
        self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    def scrape(self, name):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                return [one for one in samples(answer.read()) if one.name == name]
        except URLError:  # an agent that was just started
            return []

    def until(self, condition, what):
        until(condition, timeout_s=25, what=what)

    def run(self, pod, claim, device, namespace="team"):
        """Allocate a new claim, let a pod use it, and return the pod."""
        api = self.here.api
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        made = api.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                           "metadata": {"name": claim, "namespace": namespace},
                           "spec": {"devices": {"requests": requests}}})  # fmt: skip
        entry = {"name": "gpu", "resourceClaimName": claim}
        container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"nodeName": NODE, "resourceClaims": [entry], "containers": [container]}
        metadata = {"name": pod, "namespace": namespace}
        pod_wire = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": pool_name(NODE, NVIDIA_DRIVER), "device": device}
        user = {"resource": "pods", "name": pod, "uid": pod_wire["metadata"]["uid"]}
        made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        path = CLAIMS.path(namespace, claim)
        api.request("PUT", f"{path}/status", body=made)
        self.here.kubelet.prepare_pod(pod_wire)
        return pod_wire

    def end(self, pod):
        self.here.kubelet.unprepare_pod(pod)
        namespace = pod["metadata"]["namespace"]
        claim = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
        self.here.api.request("DELETE", CLAIMS.path(namespace, claim))
        self.here.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")


@pytest.fixture
def node(tmp_path):
    with stage("1.35") as here:
        yield Scraped(here, tmp_path)


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

    (ended,) = (
        one for one in node.scrape("dra_claim_allocated_seconds_total") if one.labels["pod"] == "one" and one.value
    )
    before = node.scrape("dra_allocated_seconds_total")[0]
    assert (before.labels["namespace"], before.labels["device_class"]) == ("team", "gpu.nvidia.com")
    assert before.value >= ended.value
    node.here.end(agent, signal.SIGKILL)
    node.start()
    node.until(lambda: node.scrape("dra_allocated_seconds_total"), "the hours")
    assert node.scrape("dra_allocated_seconds_total")[0].value > before.value


def test_full_telemetry_profiles_and_a_hardware_that_hangs_makes_readings_old_but_no_scrape_fail(node):
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


def test_telemetry_that_is_off_shows_nothing_and_that_without_the_common_names_only_its_own(node):
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
