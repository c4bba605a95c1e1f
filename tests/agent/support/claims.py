"""Claims that the API server keeps."""

from dra_driver.embedded.api.kinds import CLAIMS
from dra_driver.embedded.kubelet.plugin_calls import ClaimRef
from dra_driver.model.names import NVIDIA_DRIVER
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
