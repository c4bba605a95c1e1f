"""LimitWatch: restores memory limits of pods that another process on the node ended, and reports them.

A limit is a file of a cgroup that belongs to the kubelet and to systemd. Neither writes that file, but any process
with the necessary rights can end a limit: by writing the file, or by disabling the controller in a cgroup above it.
In: the limiter, which knows the limits that must hold. Out: an Event about each affected pod, and problems for the
metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dra_driver.hardware.facts import Problem
from dra_driver.kube.api import KubeApi
from dra_driver.kube.events import PodId, pod_event, send_event
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.memory_limiter import LostLimit, MemoryLimiter
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
TURN_SECONDS = 5.0  # time limit of one check
SHOWN_SECONDS = 600.0  # how long a limit that was lost and set again remains a problem, so that metrics show it
REASON = "DeviceMemoryLimitLost"


class LimitWatch(AgentPart):
    """Checks the limits of one node while this instance has the node's role."""

    def __init__(
        self,
        limiter: MemoryLimiter,
        api: KubeApi,
        *,
        node: str,
        driver: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limiter, self._api, self._node, self._driver, self._clock = limiter, api, node, driver, clock
        self._loop = Loop("limits", self._turn, failure="check of memory limits failed", fault_s=CHECK_SECONDS)
        self._lost: dict[tuple[str, str], tuple[float, LostLimit]] = {}

    def start(self) -> None:
        """Begin to check. May be called again after `stop`."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread."""
        self._loop.stop()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the limits that were lost, by pod."""
        now = self._clock()
        recent = [lost for at, lost in self._lost.values() if now - at < SHOWN_SECONDS]
        return tuple(Problem("sharing.limit-lost", lost.pod, lost.sentence) for lost in recent)

    def check(self) -> tuple[LostLimit, ...]:
        """Check once; report and return the limits that were lost. Raises: DriverError."""
        lost = self._limiter.recheck(Deadline.after(TURN_SECONDS))
        now = self._clock()
        kept = {key: one for key, one in self._lost.items() if now - one[0] < SHOWN_SECONDS}
        self._lost = {**kept, **{(one.device, one.pod): (now, one) for one in lost}}
        for one in lost:
            self._send_event(one)
        return lost

    def _turn(self) -> float:
        try:
            self.check()
        except DriverError as error:
            log.warning("memory limits not checked", extra=fields(code=error.code, err=str(error)))
        return CHECK_SECONDS

    def _send_event(self, lost: LostLimit) -> None:
        for record in lost.claims:
            name = dict(record.claim().pod_names).get(lost.pod)
            if name:
                pod = PodId(record.namespace, name, lost.pod)
                send_event(self._api, pod_event(pod, self._node, self._driver, REASON, lost.sentence))
                return
