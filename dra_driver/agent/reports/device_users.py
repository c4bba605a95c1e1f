"""Device users: the pods that use this node's devices, or used them a moment ago.

In: the claims that the plugin reads for Prepare, and the ledger. Out: pods by name and UID. A claim that is still held
is read again for each question, because more pods may use it by now. A claim that has ended is remembered as it was
last read for a few minutes, so that a pod that ended because of its GPU still gets an Event with the reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from dra_driver.kube.events import PodId
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.errors import ApiError, LedgerError
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.wire import ClaimWire
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.node_claims.claim_results import ClaimName, name_of, results, uid_of
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

KEPT_SECONDS = 300.0  # how long an ended claim is remembered; faults are noticed within seconds
MAX_CLAIMS = 512
CLAIMS_LAST = 16  # how many claims are kept as they were read, to recognize one that has not changed
MAX_PODS = 32  # pods of one claim; the API allows 256
GET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """One claim, its devices on this node, and its pods.

    Times are seconds since 1970. `begun` is when the claim was first read, or 0 if it may be older; `ended` is None
    while the claim is held.
    """

    name: ClaimName
    devices: frozenset[str]
    pods: tuple[PodId, ...]
    begun: float = 0.0
    ended: float | None = None

    @property
    def full_name(self) -> str:
        """Return the claim's name in the form NAMESPACE/NAME."""
        return "/".join(self.name)


class DeviceUsers:
    """The users of one node's devices. Any thread may call any method.

    It replaces `api`: code that reads a claim for another purpose reads it through this object.
    """

    def __init__(
        self, api: ClaimApi, node: NodeIdentity, ledger: Ledger, clock: Callable[[], float] = time.time
    ) -> None:
        self._api, self._node, self._ledger, self._clock = api, node, ledger, clock
        self._mutex = threading.Lock()
        self._uses: dict[str, ClaimUse] = {}  # by UID, in the order in which they were read
        self._newest: dict[ClaimName, str] = {}  # the UID that was read last under each of their names
        # Claims as they were read for Prepare, and whether pods use devices of this node through them.
        self._last: FifoCache[ClaimName, tuple[ClaimWire, bool]] = FifoCache(CLAIMS_LAST)

    def get_claim(self, namespace: str, name: str, *, timeout_s: float) -> ClaimWire:
        """Read one claim, and remember who uses it from now on. Raises: ApiError."""
        full_name = namespace, name
        wire = self._api.get_claim(namespace, name, timeout_s=timeout_s)
        last = self._last.get(full_name)
        if last is None or last[0] is not wire or (last[1] and not self._is_held(uid_of(wire))):
            self._last.keep(full_name, (wire, self._remember(wire, full_name, self._clock())))
        return wire

    def _is_held(self, uid: str) -> bool:
        """Return whether a claim is remembered as one that has not ended."""
        use = self._uses.get(uid)
        return use is not None and use.ended is None

    def claim_ended(self) -> None:
        """Record that some claim was unprepared."""
        if not self._uses:
            return
        try:
            held = self._ledger.names()
        except LedgerError:
            return
        now = self._clock()
        with self._mutex:
            for uid, use in tuple(self._uses.items()):
                if use.ended is None:
                    if use.name not in held:
                        self._uses[uid] = replace(use, ended=now)
                elif now - use.ended >= KEPT_SECONDS:
                    self._forget(uid)

    def of(self, devices: Collection[str], at: float, slack_s: float) -> tuple[ClaimUse, ...]:
        """Return the claims that used any of these devices at a time, or at most `slack_s` before it, each once."""
        self._refresh(devices)
        with self._mutex:
            uses = list(self._uses.values())
        return tuple(
            use
            for use in uses
            if use.devices.intersection(devices)
            and use.begun <= at
            and (use.ended is None or use.ended >= at - slack_s)
        )

    def _refresh(self, devices: Collection[str]) -> None:
        """Read the claims that hold these devices again; a claim that can't be read stays as it was."""
        try:
            records = self._ledger.with_device(devices)
        except LedgerError:
            return
        for record in records:
            if not record.name:
                continue
            try:
                wire = self._api.get_claim(record.namespace, record.name, timeout_s=GET_SECONDS)
            except ApiError as error:
                log.info("cannot read which pods use a claim", extra=fields(claim=record.full_name, err=str(error)))
            else:
                self._remember(wire, (record.namespace, record.name), 0.0)

    def _remember(self, wire: ClaimWire, name: ClaimName, begun: float) -> bool:
        """Remember who uses a claim, and return whether pods use devices of this node through it."""
        pods = tuple(_pods_of(wire))
        if not pods or name_of(wire) != name or not (devices := self._devices_of(wire)):
            return False
        uid = uid_of(wire)
        with self._mutex:
            before = self._newest.get(name, uid)
            if before != uid and before in self._uses and self._uses[before].ended is None:
                self._uses[before] = replace(self._uses[before], ended=self._clock())  # another claim has its name now
            known = self._uses.pop(uid, None)
            self._uses[uid] = ClaimUse(name, devices, pods, begun if known is None else known.begun)
            self._newest[name] = uid
            while len(self._uses) > MAX_CLAIMS:
                self._forget(next(iter(self._uses)))
        return True

    def _forget(self, uid: str) -> None:
        forgotten = self._uses.pop(uid)
        if self._newest.get(forgotten.name) == uid:
            del self._newest[forgotten.name]

    def _devices_of(self, claim: ClaimWire) -> frozenset[str]:
        ours = (self._node.driver, self._node.pool)
        return frozenset(one["device"] for one in results(claim) if (one["driver"], one["pool"]) == ours)


def _pods_of(claim: ClaimWire) -> Iterator[PodId]:
    """Yield the pods for which a claim is reserved; entries that don't name a pod are left out."""
    status = claim.get("status")
    users = status.get("reservedFor") if isinstance(status, dict) else None
    namespace, _ = name_of(claim)
    for user in (users if isinstance(users, list) else [])[:MAX_PODS]:
        if not isinstance(user, dict) or user.get("resource") != "pods" or user.get("apiGroup"):
            continue
        name, uid = user.get("name"), user.get("uid")
        if isinstance(name, str) and isinstance(uid, str):
            yield PodId(namespace, name, uid)
