"""Events on this node's Node object, which an administrator sees with `kubectl describe node`.

In: a reason and a message. Out: one Event in the namespace `default`, where the kubelet's own events about nodes lie.
At most one is sent for each reason and object in ten minutes, and at most `MOST` in all. Events are never read, counted
or changed: the agent may only create them. A failure never reaches the caller: an event that was not sent is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
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
MOST = 50
Fault = tuple[str, ...]
PATH = within(EVENTS, NAMESPACE)


def node_event(node: str, driver: str, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Wire:
    """Return the event to send. By the kubelet's convention, the involved Node has its name as UID."""
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
    """Send an event, unless the same one was sent recently; log an event that was not sent or not accepted."""
    if not _told_by(api).is_due(_fault_of(event)):
        log.info("event not repeated", extra=fields(reason=event["reason"], err=event["message"]))
        return
    try:
        api.request("POST", PATH, body=event)
    except ApiError as error:
        log.warning("event not accepted", extra=fields(reason=event["reason"], code=error.code, err=str(error)))


class Told:
    """The faults that were reported in the last ten minutes, at most `MOST`. Any thread may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at: dict[Fault, float] = {}

    def is_due(self, fault: Fault) -> bool:
        """Return whether the fault may be reported now; if so, it counts as reported."""
        with self._lock:
            now = self._clock()
            self._at = {one: at for one, at in self._at.items() if now - at < QUIET_SECONDS}
            if fault in self._at or len(self._at) >= MOST:
                return False
            self._at[fault] = now
            return True


_told: WeakKeyDictionary[KubeApi, Told] = WeakKeyDictionary()
_told_lock = threading.Lock()


def _told_by(api: KubeApi) -> Told:
    with _told_lock:
        return _told.setdefault(api, Told())


def _fault_of(event: Wire) -> Fault:
    involved = event["involvedObject"]
    return (event["reason"], involved["kind"], involved.get("namespace", ""), involved["name"], involved["uid"])
