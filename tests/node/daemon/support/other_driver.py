"""Another driver of the same name on the node, with claims and pods of its own."""

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import CLAIMS
from tests.support.agents.agent_process import NODE
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.waiting import until


def claim(here, name, device, *, pool=NODE, **more):
    """Create a claim that is allocated to a device, reserved for a pod of its name."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    metadata = {"name": name, "namespace": "default"}
    made = here.api.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    )
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": pool, "device": device, **more}
    made["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
    }
    return here.api.request("PUT", f"{CLAIMS.path('default', name)}/status", body=made)


def pod(name):
    container = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"pod-{name}"}, "spec": spec}


class Other:
    """NVIDIA's driver, as far as the kubelet and the CDI folder see it."""

    def __init__(self, here):
        self.here = here
        self.plugin = StandInPlugin(here.folder, NVIDIA_DRIVER, name="other").start()
        here.kubelet.wait_registered(NVIDIA_DRIVER)

    def run(self, name, device, *, leaves_file=True, **more):
        uid = claim(self.here, name, device, **more)["metadata"]["uid"]
        self.plugin.devices[uid] = [
            {"request_names": ["gpu"], "pool_name": NODE, "device_name": device, "cdi_device_ids": [f"x={uid}"]}
        ]
        self.here.kubelet.prepare_pod(pod(name))
        if leaves_file:
            file = self.here.kubelet.cdi_dir / f"k8s.{NVIDIA_DRIVER}-claim_{uid}.yaml"
            file.write_text(f"cdiVersion: 0.5.0\ndevices:\n- containerEdits: {{}}\n  name: {uid}-{device}\n")
        return uid

    def leave(self):
        self.plugin.stop()
        until(lambda: not self.here.kubelet.plugins.plugins(NVIDIA_DRIVER), "the other driver to be gone")
