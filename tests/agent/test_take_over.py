"""An agent that comes up where another driver's claims are still held."""

from dra_driver.embedded.kinds import CLAIMS
from dra_driver.model.names import NVIDIA_DRIVER
from tests.support.agent_process import NODE, stage
from tests.support.waiting import until


def test_a_gpu_held_under_the_other_drivers_name_is_not_published():
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": NODE, "device": "gpu-2"}
    with stage() as here:
        made = here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "old", "namespace": "default"},
                "spec": spec,
            }
        )
        made["status"] = {"allocation": {"devices": {"results": [result]}}}
        here.api.request("PUT", f"{CLAIMS.path('default', 'old')}/status", body=made)
        here.start("simulated:dgx-h100")
        until(lambda: len(here.devices()) == 7, timeout_s=20, what="seven of eight devices")
        assert "a device is held under a foreign name device=gpu-2 claim=default/old" in here.log()
