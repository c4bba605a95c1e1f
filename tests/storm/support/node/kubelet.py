"""The kubelet's side of a storm's node: folders, registrations, PodResources, and the containers of pods.

In: the pods of claims. Out: what a kubelet has of them. A container gets the nodes that the CDI files name, which are
read as a runtime reads them, and its /etc/hosts comes from the kubelet's folder of its pod.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from dra_driver.base.errors import NodeError
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.container_view import resolve
from dra_driver.simulator.foreign_plugin import SliceWiper
from dra_driver.simulator.kubelet import EmbeddedPodResources
from dra_driver.simulator.plugin_watcher import PluginWatcher
from tests.storm.support.node.cluster import NODE, Claim, Pod
from tests.storm.support.node.container_host import Container, ContainerHost, Node
from tests.storm.support.node.terminals import Terminals


class StormKubelet:
    """One node's kubelet, except for the calls, which the storm makes itself."""

    def __init__(self, root: Path, api: EmbeddedApi) -> None:
        self.root = root
        self.registrar_dir, self.plugins_dir, self.cdi_dir = (root / n for n in ("registry", "plugins", "cdi"))
        for folder in (self.registrar_dir, self.plugins_dir, self.cdi_dir, root / "pods"):
            folder.mkdir(mode=0o750, exist_ok=True)
        self.plugins = PluginWatcher(self.registrar_dir)
        self.wiper = SliceWiper(api, NODE, self.plugins, 30.0)
        self._resources = EmbeddedPodResources(
            root / "pod-resources/kubelet.sock", pods=self._resources_of_pods, allocatable=dict
        )
        self.terminals = Terminals(root / "terminals")
        self._host = ContainerHost(self.terminals.folder)
        self._mutex = threading.Lock()
        self._admitted: dict[str, tuple[Claim, Pod]] = {}

    def start(self) -> None:
        self.plugins.start()
        self._resources.start()
        self.wiper.start()

    def stop(self) -> None:
        self.plugins.stop()
        self._resources.stop()
        self.wiper.stop()
        self.terminals.close()

    # -- pods

    def admit(self, claim: Claim, pod: Pod) -> None:
        """Admit a pod, and make its folder."""
        folder = self.root / "pods" / pod.uid
        folder.mkdir(exist_ok=True)
        (folder / "etc-hosts").write_text("127.0.0.1 localhost\n")
        with self._mutex:
            self._admitted[pod.uid] = (claim, pod)

    def forget(self, pod: Pod) -> None:
        """Forget a pod, as after a deletion by force; its folder stays until its containers have ended."""
        with self._mutex:
            self._admitted.pop(pod.uid, None)

    def tidy(self, pod: Pod) -> None:
        """Remove a pod's folder."""
        shutil.rmtree(self.root / "pods" / pod.uid, ignore_errors=True)

    def run(self, claim: Claim, pod: Pod, *, is_open: bool = True) -> Container:
        """Start a container of a pod with its claim's devices. Raises: NodeError as a runtime would refuse them."""
        hosts = self.root / "pods" / pod.uid / "etc-hosts"
        return self._host.run(pod.uid, claim.uid, hosts, self.nodes(claim), is_open=is_open)

    def nodes(self, claim: Claim) -> list[Node]:
        """Return the nodes that the CDI files give a claim's containers. Raises: NodeError."""
        view = resolve(claim.cdi_ids, [self.cdi_dir])
        if not view.device_nodes:
            raise NodeError("cdi", f"{claim} has no device nodes: {view}")
        return [(node.path, node.major, node.minor) for node in view.device_nodes]

    def names(self, claim: Claim) -> dict[str, str]:
        """Return what the CDI files mount and set for a claim's containers, by path and variable. Raises: NodeError."""
        view = resolve(claim.cdi_ids, [self.cdi_dir])
        return {**dict(view.mounts), **{name: value for name, _, value in (one.partition("=") for one in view.env)}}

    def _resources_of_pods(self) -> list[tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]]:
        with self._mutex:
            admitted = list(self._admitted.values())
        return [(_pod(claim, pod), {"main": [_entry(claim)]}) for claim, pod in admitted]


def _pod(claim: Claim, pod: Pod) -> dict[str, Any]:
    return {"metadata": {"name": pod.name, "namespace": claim.namespace}}


def _entry(claim: Claim) -> dict[str, Any]:
    """Return what the kubelet lists for a claim: nothing of its devices while it is not prepared."""
    pool = f"{NODE}/{NVIDIA_DRIVER}"
    devices = [
        {"cdiDevices": [], "driverName": NVIDIA_DRIVER, "poolName": pool, "deviceName": name} for name in claim.devices
    ]
    resources = devices if claim.is_prepared else []
    return {"claimName": claim.name, "claimNamespace": claim.namespace, "claimResources": resources}
