"""Claims that are already allocated, for an agent on a stage."""

from dra_driver.base.names import NVIDIA_DRIVER, pool_name
from dra_driver.simulator.plugin_watcher import ClaimRef
from tests.support.agents.agent_process import NODE


def claim(here, device, name="claim", config=()):
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    wire = here.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": pool_name(NODE, NVIDIA_DRIVER), "device": device}
    wire["status"] = {"allocation": {"devices": {"results": [result], "config": list(config)}}}
    here.api.request("PUT", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status", body=wire)
    return ClaimRef("default", name, wire["metadata"]["uid"])
