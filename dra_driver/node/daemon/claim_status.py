"""ClaimStatus: writes into the status of prepared claims which devices they got, and whether these are healthy.

In: the ledger, the inventory, the CDI files and the taints of faults. Out: `status.devices` of the claims of this node,
by server-side apply, after the kubelet was answered. Nothing is written that the server already has. If the server
drops the field (its gate is off) or forbids the write, the next attempt is an hour later. The API server removes the
entries when the claim is deallocated.
Source: KEP-4817; Kubernetes API resource/v1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dra_driver.base.errors import ApiError, DriverError, LedgerError, Retry
from dra_driver.base.machine import FifoCache
from dra_driver.base.names import replicated_name
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import ClaimName, ClaimWire, DeviceTaints, Wire, name_of, results, strategy_of, uid_of
from dra_driver.kube.api import KubeApi, PodId
from dra_driver.kube.paths import RESOURCE_GROUP, ClaimApi, claim_path
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.metadata import DeviceStatus, KnownDevice, applied_statuses, own_entries
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.devices.offering import CurrentInventory, Inventory, NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.node.ledger.recorded_steps import RecordedPartition, RecordedSharing

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
APART_SECONDS = 1.0
FAULT_SECONDS = 15.0
REFUSED_SECONDS = 3600.0  # seconds until a server that keeps no status, or forbids it, is asked again
AT_ONCE = 50  # claims of one turn, so that a restart with many claims does not flood the server
# Each driver has its own field manager, because an entry that a manager leaves out of what it applies is removed.
MANAGER = "dra-driver {}"
_APPLY = "application/apply-patch+yaml"
_FORBIDDEN, _GONE, _CHANGED = 403, 404, 409
_REFUSED = {400, 413, 422}  # the answers that concern one claim only


@dataclass(frozen=True, slots=True)
class _StatusInputs:
    """What the statuses of a claim are derived from. Inventory and taints are replaced on a change, never modified."""

    record: ClaimRecord
    inventory: Inventory
    taints: DeviceTaints | None

    def is_same(self, before: _StatusInputs | None) -> bool:
        """Return whether these inputs are the same as those from before."""
        return (
            before is not None
            and self.inventory is before.inventory
            and self.taints is before.taints
            and self.record == before.record
        )


class ClaimStatus(AgentPart):
    """Writes the statuses of one node's claims, in the instance with the node's role. Any thread may call it."""

    def __init__(
        self,
        api: KubeApi,
        node: NodeIdentity,
        *,
        ledger: Ledger,
        store: CdiStore,
        inventory: CurrentInventory,
        is_health_watched: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._node, self._ledger, self._store = api, node, ledger, store
        self._inventory, self._clock = inventory, clock
        self._taints: DeviceTaints | None = {} if is_health_watched else None
        self._written: dict[str, tuple[DeviceStatus, ...]] = {}  # by the claim's UID
        self._looked_at: dict[str, _StatusInputs] = {}  # what `_written` was derived from, by the claim's UID
        self._next = float("-inf")
        self._paused_until = float("-inf")
        self._loop = Loop("claim-status", self._turn, failure="status of claims not written", fault_s=FAULT_SECONDS)

    def start(self) -> None:
        """Write the statuses that the server does not have, now and whenever something changes."""
        self._loop.start()

    def stop(self) -> None:
        """Stop writing; another instance takes over."""
        self._loop.stop()

    def claim_prepared(self) -> None:
        """Write the claim's status soon."""
        self._loop.wake()

    def health_changed(self, taints: DeviceTaints) -> None:
        """Write the statuses that these faults change."""
        if self._taints is not None:
            self._taints = taints
        self._loop.wake()

    def write_all(self) -> int:
        """Write the statuses that changed, of at most `AT_ONCE` claims; return how many are left.

        Raises: ApiError, LedgerError.
        """
        if self._clock() < self._paused_until:
            return 0
        todo = dict(self._changed())
        for uid, (record, statuses) in list(todo.items())[:AT_ONCE]:
            if not self._write(record, statuses):
                self._paused_until = self._clock() + REFUSED_SECONDS
                return 0
            self._written[uid] = statuses
        return max(0, len(todo) - AT_ONCE)

    def _turn(self) -> float:
        """Write at most once in `APART_SECONDS`, however many claims are prepared meanwhile."""
        wait_s = self._next - self._clock()
        if wait_s > 0:
            return wait_s
        self._next = self._clock() + APART_SECONDS
        return APART_SECONDS if self.write_all() else INTERVAL_SECONDS

    def _changed(self) -> Iterator[tuple[str, tuple[ClaimRecord, tuple[DeviceStatus, ...]]]]:
        """Yield the claims whose status differs from what was written, and forget those that have ended."""
        records = self._ledger.records()
        known = {record.uid for record in records}
        self._written = {uid: statuses for uid, statuses in self._written.items() if uid in known}
        self._looked_at = {uid: inputs for uid, inputs in self._looked_at.items() if uid in known}
        inventory, taints = self._inventory.current, self._taints
        for record in records:
            if record.state != ClaimState.PREPARED or not record.name or record.boot_id != self._node.boot_id:
                continue
            inputs = _StatusInputs(record, inventory, taints)
            if record.uid in self._written and inputs.is_same(self._looked_at.get(record.uid)):
                continue
            self._looked_at[record.uid] = inputs
            try:
                statuses = tuple(self._statuses(record))
            except DriverError as error:
                log.warning(
                    "cannot determine the status of a claim", extra=fields(claim=record.full_name, err=str(error))
                )
                continue
            if self._written.get(record.uid) != statuses:
                yield record.uid, (record, statuses)

    def _statuses(self, record: ClaimRecord) -> Iterator[DeviceStatus]:
        """Yield what is known of each device of a claim. Raises: LedgerError, PrepareError."""
        nodes = _nodes(self._store.read(cdi.claim_file(self._node.driver, record.uid)) or {})
        made = {step.device: step.uuid or "" for step in record.steps_of(RecordedPartition)}
        sharing = {name: step for step in record.steps_of(RecordedSharing) for name in step.in_file}
        for device in record.claim().devices:
            name = cdi.device_name(record.uid, device.device, device.share_id)
            found = self._inventory.current.find(device.device, device.share_id)
            version = found.attributes.get("driverVersion") if found else None
            known = KnownDevice(
                uuid=made.get(device.device)
                or (found.uuid if found and (found.partition or not found.placement) else ""),
                driver_version=version[1] if isinstance(version, tuple) else "",
                nodes=nodes.get(name, ()),
                sharing=str(strategy_of(sharing[name].settings)) if name in sharing else "",
            )
            if self._taints is not None:
                known = replace(known, taints=self._taints.get(replicated_name(device.device) or device.device, ()))
            yield DeviceStatus(self._node.driver, device, known)

    def _write(self, record: ClaimRecord, statuses: tuple[DeviceStatus, ...]) -> bool:
        """Write one claim's status unless the server has it; return False if the server keeps no status.

        Raises: ApiError.
        """
        path = claim_path(record.namespace, record.name)
        try:
            claim = self._api.get_claim(record.namespace, record.name)
            if claim["metadata"].get("uid") != record.uid:
                return True
            before = (claim.get("status") or {}).get("devices")
            wanted = applied_statuses(statuses, before, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
            if own_entries(before, self._node.driver) == wanted:
                return True
            meta = {"name": record.name, "namespace": record.namespace, "uid": record.uid}
            body: Wire = {"apiVersion": RESOURCE_GROUP, "kind": "ResourceClaim", "metadata": meta}
            body["status"] = {"devices": wanted}
            query = {"fieldManager": MANAGER.format(self._node.driver), "force": "true"}
            answer = self._api.request("PATCH", f"{path}/status", body=body, query=query, content_type=_APPLY)
        except ApiError as error:
            return self._goes_on(record, error)
        if own_entries((answer.get("status") or {}).get("devices"), self._node.driver):
            return True
        log.warning("the API server keeps no status of devices (gate DRAResourceClaimDeviceStatus)")
        return False

    def _goes_on(self, record: ClaimRecord, error: ApiError) -> bool:
        """Return whether to continue with other claims after an error. Raises: ApiError if it may be temporary."""
        if error.status in {_GONE, _CHANGED}:
            return True
        extra = fields(claim=record.full_name, code=error.code, err=str(error))
        if error.status != _FORBIDDEN:
            if error.retry is not Retry.NEVER and error.status not in _REFUSED:
                raise error
            log.warning("status of a claim refused", extra=extra)  # the error concerns this claim only
            return True
        log.warning("the status of claims may not be written: is claimStatus on in the chart?", extra=extra)
        return False


def _nodes(document: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    devices = document.get("devices")
    found: dict[str, tuple[str, ...]] = {}
    for device in devices if isinstance(devices, list) else ():
        edits = device.get("containerEdits") or {}
        found[str(device.get("name"))] = tuple(str(node.get("path")) for node in edits.get("deviceNodes") or ())
    return found


# Device users: the pods that use this node's devices, or used them a moment ago.

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
        return frozenset(result["device"] for result in results(claim) if (result["driver"], result["pool"]) == ours)


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
