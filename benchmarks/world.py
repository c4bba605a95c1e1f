"""World: an API server, the agent and a kubelet's connection, in separate processes as on a real node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.base.names import NVIDIA_DRIVER, pool_name
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.simulator.kubelet import EmbeddedPodResources
from dra_driver.simulator.plugin_watcher import Plugin, Registrar

NODE = "bench"
RESOURCES = "/apis/resource.k8s.io/v1"
_API = """
import sys
from dra_driver.simulator.api_server import EmbeddedApi
api = EmbeddedApi(version=sys.argv[2])
api.start()
api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"}})
api.write_kubeconfig(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


class World:
    """The folders, the API server and the agent of one measurement."""

    def __init__(self, folder: Path, api: KubeApi) -> None:
        self.folder, self.api = folder, api
        self.agent: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    def start_agent(self, hardware: str, *flags: str, environment: dict[str, str] | None = None) -> None:
        """Start the real agent; `started_at` is the moment before its process existed."""
        command = [sys.executable, "-m", "dra_driver", "agent", "--node-name", NODE, "--hardware", hardware]
        command += ["--kubeconfig", f"{self.folder}/kubeconfig", "--cdi-root", f"{self.folder}/cdi"]
        command += ["--kubelet-registrar-directory-path", f"{self.folder}/reg"]
        command += ["--kubelet-plugins-directory-path", f"{self.folder}/plugins", *flags]
        self.started_at = time.monotonic()
        with (self.folder / "agent.log").open("wb") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})

    def slices(self) -> list[Wire]:
        found: list[Wire] = self.api.request("GET", f"{RESOURCES}/resourceslices")["items"]
        return found

    def wait_for_slices(self, devices: int = 1) -> float:
        """Return the seconds from the agent's start until this many devices are in the API server."""
        while True:
            slices = self.slices()
            if sum(len(s["spec"].get("devices", ())) for s in slices) >= devices:
                return time.monotonic() - self.started_at
            if self.agent is None or self.agent.poll() is not None or time.monotonic() - self.started_at > 30:
                raise RuntimeError((self.folder / "agent.log").read_text())
            time.sleep(0.002)

    def plugin(self, driver: str = NVIDIA_DRIVER) -> Plugin:
        """Register the plugin of a driver as a kubelet would, and connect to its service."""
        deadline = time.monotonic() + 10
        while not (sockets := list((self.folder / "reg").glob(f"{driver}*.sock"))):
            if time.monotonic() > deadline:
                raise RuntimeError("no registration socket")
            time.sleep(0.002)
        registrar = Registrar(sockets[0])
        info = registrar.get_info()
        registrar.notify()
        return Plugin(info.driver, Path(info.endpoint), "v1.DRAPlugin", sockets[0])

    def allocated_claim(self, device: str, *, driver: str = NVIDIA_DRIVER, **share: Any) -> Wire:
        """Create a claim that is allocated to one device, or to the share of it that the fields describe."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1}
        request = {"name": "gpu", "exactly": exactly}
        claim = self.api.request(
            "POST",
            f"{RESOURCES}/namespaces/default/resourceclaims",
            body={
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            },
        )
        result = {"request": "gpu", "driver": driver, "pool": pool_name(NODE, driver), "device": device}
        result |= share
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        return self.api.request("PUT", f"{RESOURCES}/namespaces/default/resourceclaims/{name}/status", body=claim)

    def rss_mib(self) -> float:
        """Return the agent's resident memory in MiB."""
        assert self.agent is not None
        for line in Path(f"/proc/{self.agent.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def cpu_seconds(self) -> float:
        assert self.agent is not None
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(30)
            self.agent = None


@contextmanager
def world(version: str = "1.35") -> Iterator[World]:
    """Yield a fresh world; everything that it started is ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="drab"))
    memory = Path(tempfile.mkdtemp(prefix="drab", dir="/dev/shm"))  # /var/run/cdi is a tmpfs on a node
    server = subprocess.Popen(
        [sys.executable, "-c", _API, f"{folder}/kubeconfig", version], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    it = World(folder, KubeApi(load_credentials(f"{folder}/kubeconfig")))
    (folder / "cdi").symlink_to(memory)
    for name in ("reg", "plugins"):
        (folder / name).mkdir()
    kubelet = EmbeddedPodResources(folder / "pod-resources/kubelet.sock", pods=list, allocatable=dict)
    kubelet.start()  # an agent waits ten seconds for a kubelet that does not answer
    try:
        yield it
    finally:
        it.stop_agent()
        kubelet.stop()
        it.api.close()
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def profile(folder: Path, gpus: int) -> Path:
    """Write a fleet profile of `gpus` whole GPUs of one model (JSON is YAML)."""
    document: dict[str, Any] = {
        "about": f"{gpus} GPUs for a measurement",
        "nodeName": NODE,
        "lookedUp": "2026-11-21",
        "sources": ["made up"],
        "driverVersion": "580.126.20",
        "cudaDriverVersion": "13.0",
        "gpuDefaults": {"model": "h100-sxm5-80gb", "nvlinkGroup": "nvswitch"},
        "gpus": [
            {"pci": f"0000:{index + 1:02x}:00.0", "pcieRoot": "pci0000:00", "numaNode": 0} for index in range(gpus)
        ],
    }
    path = folder / "profile.yaml"
    path.write_text(json.dumps(document))
    return path
