"""NVIDIA's ComputeDomain plugin, as far as a node and a scheduler see it: channels and a daemon under its own name.

In: a stage. Out: a class, slices, and a plugin whose Prepare refuses a channel until the node's IMEX daemon is said to
be ready, as that plugin does. It has no fabric: a channel is a null device.
Source: NVIDIA, k8s-dra-driver-gpu, compute-domain-kubelet-plugin: driver, class, devices, attributes, retries.
"""

from __future__ import annotations

from typing import Any

import yaml

from cluster.stage import Stage
from tests.support.plugin.stand_in_plugin import StandInPlugin

DRIVER = "compute-domain.nvidia.com"
CHANNELS = "compute-domain-default-channel.nvidia.com"
_CHANNEL = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "channel" && '
_CHANNEL += f'device.attributes["{DRIVER}"].id == 0'


class ComputeDomainPlugin:
    """The plugin on the stage's node, with its class and its slice, until it is stopped."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._node = stage, stage.node
        self.plugin = StandInPlugin(self._node.kubelet_root, DRIVER).start()
        names = [("channel", 0), ("channel", 1), ("daemon", 0)]
        devices = [
            {"name": f"{kind}-{number}", "attributes": {"type": {"string": kind}, "id": {"int": number}}}
            for kind, number in names
        ]
        pool = {"name": self._node.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self._node.name, "pool": pool, "devices": devices}
        self._made = [
            ("ResourceSlice", f"{self._node.name}-channels", spec),
            ("DeviceClass", CHANNELS, {"selectors": [{"cel": {"expression": _CHANNEL}}]}),
        ]
        for kind, name, wanted in self._made:
            self._create(kind, name, wanted)

    def domain_is_ready(self, claim: str) -> None:
        """Let a claim's channel be prepared from now on; it was refused before."""
        uid = self._uid(claim)
        device = {"request_names": ["channel"], "pool_name": self._node.name, "device_name": "channel-0"}
        self.plugin.devices[uid] = [{**device, "cdi_device_ids": [self._write(uid)]}]
        self.plugin.errors.pop(uid, None)

    def domain_is_not_ready(self, claim: str) -> None:
        """Refuse a claim's channel, as the plugin does while the domain's daemons start."""
        self.plugin.errors[self._uid(claim)] = "current node not ready in ComputeDomain"

    def stop(self) -> None:
        """Remove the sockets, the objects and the CDI files."""
        self.plugin.stop()
        for file in self._node.cdi.glob(f"k8s.{DRIVER}-*"):
            file.unlink()
        for kind, name, _ in self._made:
            self._stage.cluster.api.delete(kind, name)

    def _create(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        wire = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self._stage.cluster.api.create(wire)

    def _uid(self, claim: str) -> str:
        return str(self._stage.cluster.api.get("ResourceClaim", claim, self._stage.namespace)["metadata"]["uid"])

    def _write(self, uid: str) -> str:
        edits = {"deviceNodes": [{"path": "/dev/nvidia-caps-imex-channels/channel0", "hostPath": "/dev/null"}]}
        content = {
            "cdiVersion": "0.5.0",
            "kind": f"k8s.{DRIVER}/claim",
            "devices": [{"name": uid, "containerEdits": edits}],
        }
        (self._node.cdi / f"k8s.{DRIVER}-claim_{uid}.yaml").write_text(yaml.safe_dump(content))
        return f"k8s.{DRIVER}/claim={uid}"
