"""Fault events: Events on the Node, and on the pods that use a faulty device or used it when the fault began.

In: what happened, from the monitor's thread. Out: Events, sent by a thread that exists only while there is something to
send, so that an API server that does not answer never holds up the monitor. A pod gets at most one Event of a reason in
ten minutes. Errors of applications cause at most one write a minute on a node, however often applications crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.agent.reports.device_users import ClaimUse, DeviceUsers
from dra_driver.kube.api import KubeApi
from dra_driver.kube.events import node_event, pod_event, send_event
from dra_driver.model.errors import NodeError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

FAULT_REASON = "DeviceFault"
APPLICATION_REASON = "DeviceApplicationError"
HELD_BACK_REASON = "EvictionHeldBack"
APPLICATION_SECONDS = 60.0  # seconds between two Events about errors of applications
MAX_WAITING = 256
SEEN_LATE_SECONDS = 15.0  # a fault that is found by polling may have ended a pod up to this long before
DIED_SECONDS = 2.0  # the same for an Xid, whose time is known exactly
MAX_DEVICES = 3  # the most devices that are named in one message


@dataclass(frozen=True, slots=True)
class PodNotice:
    """A message for the pods that use some devices, or used them at `since` (seconds since 1970)."""

    devices: frozenset[str]
    reason: str
    message: str
    since: float


class FaultEvents:
    """The Events of one agent. Any thread may call any method, and no call waits."""

    def __init__(
        self,
        api: KubeApi,
        users: DeviceUsers,
        *,
        node: str,
        driver: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._users, self._node, self._driver, self._clock = api, users, node, driver, clock
        self._mutex = threading.Lock()
        self._waiting: deque[PodNotice | tuple[str, str]] = deque(maxlen=MAX_WAITING)
        self._application_at = float("-inf")
        self._loop = Loop("fault-events", self._turn, failure="events about faults failed")

    def send_node_event(self, reason: str, message: str) -> None:
        """Send an Event about the node."""
        self._add((reason, message))

    def send_pod_events(self, news: PodNotice) -> None:
        """Send an Event about each pod that uses one of the devices, or used it when the fault began."""
        self._add(news)

    def send_application_event(self, devices: frozenset[str], message: str, at: float) -> None:
        """Send an Event about an error of an application, unless one was sent within the last minute."""
        with self._mutex:
            now = self._clock()
            if now - self._application_at < APPLICATION_SECONDS:
                return
            self._application_at = now
        self._add(PodNotice(devices, APPLICATION_REASON, message, at))

    def _add(self, one: PodNotice | tuple[str, str]) -> None:
        with self._mutex:
            self._waiting.append(one)
        try:
            self._loop.resume()
        except NodeError as error:  # the next Event's thread sends this one too
            log.warning("an Event waits for the next one", extra=fields(code=error.code, err=str(error)))

    def _turn(self) -> float | None:
        with self._mutex:
            one = self._waiting.popleft() if self._waiting else None
        if one is None:
            return None
        if isinstance(one, PodNotice):
            self._send_to_users(one)
        else:
            send_event(self._api, node_event(self._node, self._driver, "Warning", *one))
        return 0.0

    def _send_to_users(self, news: PodNotice) -> None:
        is_application = news.reason == APPLICATION_REASON
        uses = self._users.of(news.devices, news.since, DIED_SECONDS if is_application else SEEN_LATE_SECONDS)
        for pod, use in [(pod, one) for one in uses for pod in one.pods]:
            message = f"{_named(news, use)}: {news.message}; claim {use.full_name}"
            is_sent = send_event(self._api, pod_event(pod, self._node, self._driver, news.reason, message))
            if is_sent and is_application:
                return  # if the error continues, other users of the device get an Event a minute later


def _named(news: PodNotice, use: ClaimUse) -> str:
    names = sorted(use.devices.intersection(news.devices))
    more = f" and {len(names) - MAX_DEVICES} more" if len(names) > MAX_DEVICES else ""
    return f"device{'s' if len(names) > 1 else ''} {', '.join(names[:MAX_DEVICES])}{more}"
