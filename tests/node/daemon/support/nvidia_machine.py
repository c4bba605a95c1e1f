"""A node on the fake NVIDIA library, with an agent on it."""

from dra_driver.base.names import NVIDIA_DRIVER, pool_name
from dra_driver.simulator.plugin_watcher import ClaimRef
from tests.support.agents.agent_process import NODE
from tests.support.fake_nvml import State, build, hgx_h100
from tests.support.nodes.fake_node import FakeNode


class Machine:
    """Two H100 GPUs of the fake library, and the agent of their node."""

    def __init__(self, here, folder):
        self.here, self.folder = here, folder
        self.node = FakeNode(folder / "node", null_nodes=True)
        self.node.load_driver()
        self.library = build(folder / "lib")
        self.state = State()
        self.gpus = hgx_h100(2)
        for gpu in self.gpus:
            self.node.add_gpu(gpu.pci, gpu.minor)
        self.state.gpus.extend(self.gpus)
        self.write()

    def write(self):
        self.state.write(self.folder / "state")

    def start(self, *flags):
        roots = [f"--sysfs-root={self.node.roots.sys}", f"--proc-root={self.node.roots.proc}"]
        environment = {"LD_LIBRARY_PATH": str(self.folder / "lib"), "FAKE_NVML_STATE": str(self.folder / "state")}
        return self.here.start("auto", *roots, f"--dev-root={self.node.roots.dev}", *flags, environment=environment)

    def claim(self, device, name="claim", config=()):
        """Create a claim that is allocated to a device, with configs in the form of an allocation."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        wire = self.here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": pool_name(NODE, NVIDIA_DRIVER), "device": device}
        wire["status"] = {"allocation": {"devices": {"results": [result], "config": list(config)}}}
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}/status"
        self.here.api.request("PUT", path, body=wire)
        return ClaimRef("default", name, wire["metadata"]["uid"])


def names(gpus):
    return [f"gpu-{gpu.pci.replace(':', '-').replace('.', '-')}" for gpu in gpus]
