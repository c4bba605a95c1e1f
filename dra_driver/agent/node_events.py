"""Node events: Events about this node for its administrator (`kubectl describe node`)."""

from __future__ import annotations

from typing import Literal

from dra_driver.kube.api import KubeApi
from dra_driver.kube.events import node_event, send_event


class NodeEvents:
    """Sends events about one node. A failure never reaches the caller."""

    def __init__(self, api: KubeApi, *, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def send(self, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Send an event, unless the same one was sent recently."""
        send_event(self._api, node_event(self._node, self._driver, kind, reason, message))
