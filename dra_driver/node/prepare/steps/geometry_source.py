"""Geometry source: finds the MIG geometry that this node is to have, from the flag, the node's labels and a file.

In: rules, the Kubernetes API, the kubelet, a path. Out: the geometry's name, and the configurations among which that
name is looked up. The file (a mounted ConfigMap) is read again when it has changed; while it is invalid, its last valid
content stays in force. Nothing is changed here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import InputError, NodeError
from dra_driver.base.machine import Stamp, stamp_of
from dra_driver.base.telemetry.logs import fields
from dra_driver.kube.paths import NodeApi
from dra_driver.node.devices.geometry import FROM_LABEL, Configurations, GeometryRule, geometry_of
from dra_driver.node.neighbours.pod_resources import NodePods

log = logging.getLogger(__name__)

LABEL = "nvidia.com/mig.config"
MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"  # "true" on nodes where the GPU Operator may run its MIG manager
MANAGER_POD = "nvidia-mig-manager-"  # the prefix of the pods of its DaemonSet


class PodsOfNode(Protocol):
    """The question that this module asks the kubelet."""

    def pods(self) -> NodePods:
        """Return this node's pods. Raises: NodeError."""


class GeometrySource:
    """The declared geometry of one node. Only one thread may use it."""

    def __init__(
        self, rules: tuple[GeometryRule, ...], node: str, *, api: NodeApi, kubelet: PodsOfNode, file: Path | None = None
    ) -> None:
        self._rules, self._node, self._api, self._kubelet, self._file = rules, node, api, kubelet, file
        self._stamp: Stamp | None = None
        self._configurations: Configurations = {}
        self.fault = ""  # what is wrong with the file

    @property
    def is_declared(self) -> bool:
        """Return whether a geometry is declared for any node."""
        return bool(self._rules)

    def name(self) -> str:
        """Return the name of the geometry that is in force now; "" if there is none. Raises: ApiError."""
        needs_labels = any(rule.geometry == FROM_LABEL or "=" in rule.selector for rule in self._rules)
        labels: Mapping[str, str] = {}
        if needs_labels:
            labels = (self._api.get_node(self._node).get("metadata") or {}).get("labels") or {}
        found = geometry_of(self._rules, self._node, labels)
        if found != FROM_LABEL:
            return found
        wanted = str(labels.get(LABEL, ""))
        return "" if not wanted or self._has_manager(labels) else wanted

    def configurations(self) -> Configurations:
        """Return the configurations in the file; none if there is no file."""
        if self._file is None:
            return {}
        try:
            stamp = stamp_of(self._file)
            if stamp is None or stamp != self._stamp:
                self._configurations, self._stamp = _read(self._file), stamp
                log.info("MIG configurations read", extra=fields(file=str(self._file), count=len(self._configurations)))
            self.fault = ""
        except InputError as error:
            self._complain(str(error))
        return self._configurations

    def _complain(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("MIG configurations not read", extra=fields(file=str(self._file), err=fault))
        self.fault = fault

    def _has_manager(self, labels: Mapping[str, str]) -> bool:
        """Return whether NVIDIA's MIG manager runs on this node and acts on the label.

        If the kubelet does not answer, the label that deploys the manager decides.
        """
        try:
            pods = self._kubelet.pods().pods
        except NodeError:
            return labels.get(MANAGER_LABEL) == "true"
        return any(name.startswith(MANAGER_POD) for _, name in pods)


def _read(file: Path) -> Configurations:
    """Read the file. Raises: InputError."""
    from dra_driver.node.devices.geometry_file import read_configurations  # noqa: PLC0415 - pydantic, only for this

    return read_configurations(file)
