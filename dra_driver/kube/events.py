"""Events about this node, and about pods that use its devices, as `kubectl describe` shows them.

In: an object, a reason and a message. Out: one Event. An Event about a node is in the namespace `default`, where the
kubelet's own events about nodes are; an Event about a pod is in the pod's namespace. In ten minutes at most one is sent
for each reason and object, and at most `MAX` in all. Events are never read, counted or changed: the agent may only
create them. A failure never reaches the caller: an event that was not sent is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from weakref import WeakKeyDictionary

from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import EVENTS, within
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

NAMESPACE = "default"
QUIET_SECONDS = 600.0
MAX = 50
MAX_MESSAGE = 1024  # characters; longer ones are refused by the API server
EventKey = tuple[str, ...]  # the reason and the object
PATH = within(EVENTS, NAMESPACE)


@dataclass(frozen=True, slots=True, order=True)
class PodId:
    """One pod. A later pod of the same name has another UID."""

    namespace: str
    name: str
    uid: str


def node_event(node: str, driver: str, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Wire:
    """Return an event about a Node, which has its name as UID by the kubelet's convention."""
    involved = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    return _event(involved, NAMESPACE, node=node, driver=driver, kind=kind, reason=reason, message=message)


def pod_event(pod: PodId, node: str, driver: str, reason: str, message: str) -> Wire:
    """Return a warning about a pod. The chart's admission policy lets an agent create no other kind about pods."""
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    event = _event(involved, pod.namespace, node=node, driver=driver, kind="Warning", reason=reason, message=message)
    return {**event, "reportingComponent": driver, "reportingInstance": node}


def send_event(api: KubeApi, event: Wire) -> bool:
    """Send an event, unless the same one was sent recently; log an event that was not sent or not accepted.

    Return whether it was sent to the API server.
    """
    if not _throttle_of(api).is_due(_key_of(event)):
        log.info("event not repeated", extra=fields(reason=event["reason"], err=event["message"]))
        return False
    try:
        api.request("POST", within(EVENTS, event["metadata"]["namespace"]), body=event)
    except ApiError as error:
        log.warning("event not accepted", extra=fields(reason=event["reason"], code=error.code, err=str(error)))
    return True


def _event(involved: Wire, namespace: str, *, node: str, driver: str, kind: str, reason: str, message: str) -> Wire:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "dra-driver-", "namespace": namespace},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": driver, "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class EventThrottle:
    """The events that were sent in the last ten minutes, at most `MAX`. Every method may be called by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at: dict[EventKey, float] = {}

    def is_due(self, key: EventKey) -> bool:
        """Return whether the event may be sent now; if so, it counts as sent."""
        with self._lock:
            now = self._clock()
            self._at = {one: at for one, at in self._at.items() if now - at < QUIET_SECONDS}
            if key in self._at or len(self._at) >= MAX:
                return False
            self._at[key] = now
            return True


class NodeEvents:
    """Sends events about one node. A failure never reaches the caller."""

    def __init__(self, api: KubeApi, *, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def send(self, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Send an event, unless the same one was sent recently."""
        send_event(self._api, node_event(self._node, self._driver, kind, reason, message))


_throttles: WeakKeyDictionary[KubeApi, EventThrottle] = WeakKeyDictionary()
_throttles_lock = threading.Lock()


def _throttle_of(api: KubeApi) -> EventThrottle:
    with _throttles_lock:
        return _throttles.setdefault(api, EventThrottle())


def _key_of(event: Wire) -> EventKey:
    involved = event["involvedObject"]
    return (event["reason"], involved["kind"], involved.get("namespace", ""), involved["name"], involved["uid"])
