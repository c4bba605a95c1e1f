"""Events on this node's Node object: what an administrator finds with `kubectl describe node`.

In: a reason and a message. Out: one Event in the namespace `default`, where the kubelet's own events about nodes lie.
It never fails its caller: an event that was not taken is a line in the log.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Literal

from dra_driver.kube.api import KubeApi
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

NAMESPACE = "default"
PATH = f"/api/v1/namespaces/{NAMESPACE}/events"


def node_event(node: str, driver: str, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Wire:
    """Give the event as it is sent. The kubelet's convention: the involved Node carries its name as UID."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "dra-driver-", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": driver, "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def tell_node(api: KubeApi, event: Wire) -> None:
    """Send an event; say in the log when it was not taken."""
    try:
        api.request("POST", PATH, body=event)
    except ApiError as error:
        log.warning("event not taken", extra=fields(reason=event["reason"], code=error.code, err=str(error)))
