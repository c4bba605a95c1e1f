"""A node of simulated GPUs whose agent is metered: a stand-in API and kubelet, pods with claims, and its /metrics."""

import json
import urllib.request
from urllib.error import URLError

from dra_driver.base.names import NVIDIA_DRIVER, pool_name
from dra_driver.simulator.store import CLAIMS
from tests.support.agents.agent_process import NODE
from tests.support.metering.snapshots import samples
from tests.support.ports import free_port
from tests.support.waiting import until


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


class MeteredNode:
    """A node with an agent, its pods, and what /metrics shows."""

    def __init__(self, here, folder):
        self.here, self.folder = here, folder
        self.port = free_port()
        profile(folder)
        here.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})

    def start(self, *flags):
        address = f"--metrics-address=127.0.0.1:{self.port}"
        agent = self.here.start(f"simulated:{self.folder}/profile.yaml", address, "--telemetry-interval=1", *flags)
        self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    def scrape(self, name):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                return [one for one in samples(answer.read()) if one.name == name]
        except URLError:  # an agent that was just started
            return []

    def until(self, condition, what):
        until(condition, what=what)

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
