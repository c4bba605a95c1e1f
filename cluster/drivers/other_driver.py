"""NVIDIA's driver, as far as a take-over sees it: our name, its own pool and device names, a CDI file for each claim.

In: a cluster, a node, devices. Out: slices, pods that run on their claims, and sockets that `stop` removes. It runs in
this process; the kubelet calls it over its socket. It has no hardware: every device node is the null device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from cluster import workload
from cluster.agent import DRIVER
from cluster.stage import Stage
from dra_driver.node import cdi as ids
from tests.support.plugin.stand_in_plugin import StandInPlugin


class OtherDriver:
    """A driver that is registered under our driver's name on the stage's node, until it is stopped."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.node = stage, stage.node
        self.plugin = StandInPlugin(self.node.kubelet_root, DRIVER, name="other-driver").start()

    def publish(self, names: Sequence[str]) -> None:
        """Publish devices of these names, each with its position in the list as `index`."""
        kinds = ["mig" if "-mig-" in name else "gpu" for name in names]
        attributes = [{"type": {"string": kind}, "index": {"int": index}} for index, kind in enumerate(kinds)]
        devices = [{"name": name, "attributes": found} for name, found in zip(names, attributes, strict=True)]
        pool = {"name": self.node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self.node.name, "pool": pool, "devices": devices}
        meta = {"name": f"{self.node.name}-other"}
        self.stage.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec})
        self.names = tuple(names)

    def run(self, pod: str, device: str) -> None:
        """Start a pod on one of the devices, with a claim of the same name."""
        selector = f'device.attributes["{DRIVER}"].index == {self.names.index(device)}'
        kind = "mig.nvidia.com" if "-mig-" in device else "gpu.nvidia.com"
        request = workload.request("gpu", kind, selector)
        namespace = self.stage.namespace
        self.stage.create(workload.claim(namespace, pod, workload.devices(request)))
        uid = self.stage.cluster.api.get("ResourceClaim", pod, namespace)["metadata"]["uid"]
        found = {"request_names": ["gpu"], "pool_name": self.node.name, "device_name": device}
        self.plugin.devices[uid] = [{**found, "cdi_device_ids": [self._write(uid, device)]}]
        self.stage.create(workload.pod(namespace, pod, workload.container("main", "gpu"), claims={"gpu": pod}))
        self.stage.running(pod)
        assert self.stage.seen(pod).environment["PREPARED_BY"] == "other"

    def stop(self) -> None:
        """Remove the sockets as an uninstalled plugin does; what was prepared stays."""
        self.plugin.stop()

    def _write(self, uid: str, device: str) -> str:
        name = f"{uid}-{device}"
        edits: dict[str, Any] = {"env": ["PREPARED_BY=other"]}
        content = {
            "cdiVersion": "0.5.0",
            "kind": ids.kind(DRIVER),
            "devices": [{"name": name, "containerEdits": edits}],
        }
        file = (self.node.cdi / ids.claim_file(DRIVER, uid)).with_suffix(".yaml")
        file.write_text(yaml.safe_dump(content))
        return f"{ids.kind(DRIVER)}={name}"
