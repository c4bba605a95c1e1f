"""HealthCondition: a condition of the Node that shows whether its devices are healthy, for tools that repair machines.

In: the verdicts on faults, and whether a reboot is requested. Out: the condition `DRIVER/DevicesHealthy` of this node
and, while a reboot is requested, the annotation `DRIVER/reboot-requested`, by server-side apply to the node's status.
Both are written when they change, and compared with the Node every half hour. If the server forbids it, the next
attempt is an hour later.
Source: Kubernetes API v1, NodeCondition; sig-architecture, API conventions (a condition's type may have a prefix).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from dra_driver.base.errors import ApiError, DriverError, NodeError
from dra_driver.base.names import gpu_name
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import DeviceTaints, Wire
from dra_driver.hardware.facts import Problem
from dra_driver.kube.api import KubeApi, NodeEvents, node_event, pod_event, send_event
from dra_driver.kube.paths import node_path
from dra_driver.node.daemon.claim_status import ClaimUse, DeviceUsers
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.health.faults import Fault, FaultKey, FaultVerdict, Subject
from dra_driver.node.health.recovery import RETURNED
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.unreleased import UnreleasedClaim

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
        faults = [verdict.fault for verdict in verdicts if verdict.fault.key is not FaultKey.CORDONED]
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


# Fault events

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
            is_good = one[0] == RETURNED
            send_event(self._api, node_event(self._node, self._driver, "Normal" if is_good else "Warning", *one))
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


# Unreleased devices: shows which devices no claim gets, because a process of an ended claim still has them open.

UNRELEASED_DEVICES_CHECK_SECONDS = 2.0
REASON = "DeviceNotReleased"
CODE = "release.open"


class TaintedOffer(Protocol):
    """The devices that the node offers."""

    def keep_unreleased(self, devices: Collection[str], shared: Collection[str]) -> bool:
        """Taint these devices and no others for this reason; return whether that changes what is offered.

        Of the devices in `shared`, claims get shares and replicas.
        """


class Publishing(Protocol):
    """Writes what is offered to the API server."""

    def publish_changes(self) -> None:
        """Write it soon."""


class UnreleasedDevices(AgentPart):
    """The devices of one node that are not released."""

    def __init__(
        self, ledger: Ledger, boot_id: str, offer: TaintedOffer, publisher: Publishing, events: NodeEvents
    ) -> None:
        self._ledger, self._boot_id = ledger, boot_id
        self._offer, self._publisher, self._events = offer, publisher, events
        self._loop = Loop(
            "unreleased",
            self._turn,
            failure="check of unreleased devices failed",
            fault_s=UNRELEASED_DEVICES_CHECK_SECONDS,
        )
        self._has_role = False
        self._problems: tuple[Problem, ...] = ()

    def start(self) -> None:
        """Begin to check. May be called again after `stop`."""
        self._has_role = True
        self._loop.start()

    def stop(self) -> None:
        """End the thread."""
        self._has_role = False
        self._loop.stop()
        self._problems = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the devices that are still used although their claim has ended, by claim."""
        return self._problems

    def claim_ended(self) -> None:
        """Check soon, because a claim was unprepared."""
        if self._has_role:
            self._loop.resume()

    def check(self) -> bool:
        """Check once, and return whether any device is unreleased. Raises: LedgerError."""
        kept = self._ledger.unreleased.of_boot(self._boot_id)
        used = [claim for claim in kept if claim.users]
        self._problems = tuple(Problem(CODE, ", ".join(claim.names), _sentence(claim)) for claim in used)
        whole = {name for claim in used for name in set(claim.names) - claim.shared_names}
        if self._offer.keep_unreleased(whole, {name for claim in used for name in claim.shared_names} - whole):
            self._publisher.publish_changes()
        for claim in used:
            self._events.send(REASON, _sentence(claim), "Warning")
        return bool(kept)

    def _turn(self) -> float | None:
        try:
            return UNRELEASED_DEVICES_CHECK_SECONDS if self.check() else None
        except DriverError as error:
            log.warning("cannot read which devices are unreleased", extra=fields(code=error.code, err=str(error)))
            return UNRELEASED_DEVICES_CHECK_SECONDS


def _sentence(claim: UnreleasedClaim) -> str:
    how = "it whole" if claim.shared_names.issuperset(claim.names) else "it"
    return (
        f"{', '.join(claim.names)}: no claim gets {how}, because {claim.users[0]} still has it open through claim "
        f"{claim.namespace}/{claim.name}, which has ended; end that container, or run dra-driver release DEVICE "
        "--force on the node"
    )


# New faults: an Event about each fault when it begins to keep claims from a device, and no second one while it
# lasts.

_DELETE_POD = "; delete this pod: its claim keeps the device for as long as it exists, also if it can't be started"


class NewFaults:
    """The faults of one node about which an Event was sent. For use by a single thread at a time."""

    def __init__(self, events: FaultEvents) -> None:
        self._events = events
        self._is_starting = False
        self._began = 0.0
        self._reported: frozenset[tuple[Subject, str]] = frozenset()

    def begin(self) -> None:
        """Treat the faults of the next call as reported, because the instance that recorded them reported them."""
        self._is_starting, self._began = True, time.time()

    def report(self, verdicts: Mapping[str, tuple[FaultVerdict, ...]], current: Iterable[Fault]) -> None:
        """Send an Event about each new fault. `verdicts` are those on each device, `current` all faults of the node."""
        blocking = _notices(verdicts)
        lasting = frozenset((one.subject, one.sentence) for one in current)
        if self._is_starting:
            self._is_starting, self._reported = False, lasting
        for (subject, sentence), notice in blocking.items():
            is_old = sentence.startswith(FaultKey.CORDONED) and notice.since < self._began
            if sentence.startswith(FaultKey.REMEDIATION):
                continue  # each stage of a remediation has its own Event
            if (subject, sentence) not in self._reported and not is_old:
                self._events.send_node_event(FAULT_REASON, f"GPU {subject.gpu}: {sentence}")
                self._events.send_pod_events(notice)
        self._reported = frozenset(blocking) | (self._reported & lasting)


def _notices(verdicts: Mapping[str, tuple[FaultVerdict, ...]]) -> dict[tuple[Subject, str], PodNotice]:
    """Return the notice for each fault that keeps claims from devices, with all the devices that it affects."""
    found: dict[tuple[Subject, str], PodNotice] = {}
    for name, of_device in verdicts.items():
        for one in (one for one in of_device if one.effect.is_blocking):
            key = (one.fault.subject, one.fault.sentence)
            before = found[key].devices if key in found else frozenset()
            advice = _DELETE_POD if one.fault.key is FaultKey.GPU_LOST else ""
            found[key] = PodNotice(before | {name}, FAULT_REASON, f"{one.fault.sentence}{advice}", one.since)
    return found
