"""HealthCondition: a condition of the Node that shows whether its devices are healthy, for tools that repair machines.

In: the verdicts on faults, and whether a reboot is requested. Out: the condition `DRIVER/DevicesHealthy` of this node
and, while a reboot is requested, the annotation `DRIVER/reboot-requested`, by server-side apply to the node's status.
Both are written when they change, and compared with the Node every half hour. If the server forbids it, the next
attempt is an hour later.
Source: Kubernetes API v1, NodeCondition; sig-architecture, API conventions (a condition's type may have a prefix).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from dra_driver.health.fault import FaultKey
from dra_driver.health.policy import FaultVerdict
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import node_path
from dra_driver.model.errors import ApiError
from dra_driver.model.names import gpu_name
from dra_driver.model.taints import DeviceTaints
from dra_driver.model.wire import Wire
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0  # seconds between two checks, because a monitor that has stopped reports no change
APART_SECONDS = 10.0  # seconds between two writes
READ_SECONDS = 1800.0  # seconds from one read of the Node to the next
REFUSED_SECONDS = 3600.0  # seconds until a server that forbids it is asked again
FAULT_SECONDS = 15.0
MAX_NAMED = 3  # the most faults that are named in one message
MANAGER = "dra-driver {} node"  # each driver applies only its own fields
_APPLY = "application/apply-patch+yaml"
_FORBIDDEN = 403


class KnownHealth(Protocol):
    """What is known of the health of the node's devices."""

    @property
    def is_silent(self) -> bool:
        """Return whether what is known is too old to be relied on."""

    def blocking(self) -> tuple[FaultVerdict, ...] | None:
        """Return the verdicts that keep claims from devices, the most important first; None before any is known."""


@dataclass(frozen=True, slots=True)
class ConditionText:
    """What is written to the Node: the condition's status, reason and message, and whether a reboot is requested."""

    status: str
    reason: str
    message: str
    is_reboot_asked: bool = False


class HealthCondition(AgentPart):
    """Writes the condition of one node, in the instance with the node's role. Any thread may call it."""

    def __init__(
        self,
        api: KubeApi,
        health: KnownHealth,
        *,
        node: str,
        driver: str,
        boot_id: str,
        is_reboot_asked: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._health, self._node, self._driver = api, health, node, driver
        self._boot_id, self._is_reboot_asked, self._clock = boot_id, is_reboot_asked, clock
        self._type, self._annotation = f"{driver}/DevicesHealthy", f"{driver}/reboot-requested"
        self._written: ConditionText | None = None
        self._read_at = self._wrote_at = float("-inf")
        self._paused_until = float("-inf")
        self._loop = Loop(
            "health-condition", self.turn, failure="condition of the node not written", fault_s=FAULT_SECONDS
        )

    def start(self) -> None:
        """Write the condition if the Node does not have it, now and whenever it changes."""
        self._loop.start()

    def stop(self) -> None:
        """Stop writing; another instance takes over."""
        self._loop.stop()

    def health_changed(self, taints: DeviceTaints) -> None:
        """Write soon."""
        del taints
        self._loop.wake()

    def turn(self) -> float:
        """Write what has changed; return in how many seconds to run again. Raises: ApiError."""
        now, text = self._clock(), self._condition_text()
        is_due = text != self._written or now - self._read_at >= READ_SECONDS
        if text is None or not is_due or now < self._paused_until:
            return CHECK_SECONDS
        if now - self._wrote_at < APART_SECONDS:
            return APART_SECONDS - (now - self._wrote_at)
        try:
            self._write(text)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            self._paused_until = now + REFUSED_SECONDS
            why = fields(code=error.code, err=str(error))
            log.warning("the node's condition may not be written: is health.nodeCondition on in the chart?", extra=why)
            return CHECK_SECONDS
        self._written, self._read_at = text, now
        return CHECK_SECONDS

    def _condition_text(self) -> ConditionText | None:
        """Return what the Node should show; None while nothing is known of its devices."""
        verdicts = self._health.blocking()
        if verdicts is None:
            return None
        is_asked = self._is_reboot_asked()
        if self._health.is_silent:
            return ConditionText("Unknown", "Unmonitored", "the health of the devices can't be read", is_asked)
        faults = [one.fault for one in verdicts if one.fault.key is not FaultKey.CORDONED]
        if not faults:
            return ConditionText("True", "NoFaults", "no fault keeps claims from a device", is_asked)
        more = f"; and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        text = "; ".join(f"{gpu_name(fault.subject.gpu)}: {fault.sentence}" for fault in faults[:MAX_NAMED])
        reason = "".join(part.capitalize() for part in faults[0].key.split("-"))
        return ConditionText("False", "RebootRequested" if is_asked else reason, text + more, is_asked)

    def _write(self, text: ConditionText) -> None:
        """Write the condition unless the Node has it already. Raises: ApiError."""
        node = self._api.get_node(self._node)
        listed = (node.get("status") or {}).get("conditions") or ()
        before: Wire = next((one for one in listed if one.get("type") == self._type), {})
        asked = ((node["metadata"].get("annotations")) or {}).get(self._annotation)
        wanted = self._boot_id if text.is_reboot_asked else None
        if asked == wanted and all(before.get(name) == getattr(text, name) for name in ("status", "reason", "message")):
            return
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        since = before.get("lastTransitionTime") if before.get("status") == text.status else None
        condition = {
            "type": self._type,
            "status": text.status,
            "reason": text.reason,
            "message": text.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since or now,
        }
        meta: Wire = {"name": self._node, "uid": node["metadata"]["uid"]}
        if wanted is not None:
            meta["annotations"] = {self._annotation: wanted}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"conditions": [condition]}}
        query = {"fieldManager": MANAGER.format(self._driver), "force": "true"}
        self._api.request("PATCH", f"{node_path(self._node)}/status", body=body, query=query, content_type=_APPLY)
        self._wrote_at = self._clock()
