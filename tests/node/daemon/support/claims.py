"""Claims that the API server keeps."""

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.plugin_watcher import ClaimRef
from dra_driver.simulator.store import CLAIMS
from tests.support.agents.agent_process import NODE


def claim(here, device: str, name: str = "c1") -> ClaimRef:
    """Make a claim that is allocated to one device."""
    request = {"name": "part", "exactly": {"deviceClassName": "x", "allocationMode": "ExactCount", "count": 1}}
    made = here.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    result = {"request": "part", "driver": NVIDIA_DRIVER, "pool": f"{NODE}/{NVIDIA_DRIVER}", "device": device}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    made = here.api.request("PUT", CLAIMS.path("default", name) + "/status", body=made)
    return ClaimRef("default", name, made["metadata"]["uid"])
