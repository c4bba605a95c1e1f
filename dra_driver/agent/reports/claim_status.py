"""ClaimStatus: writes into the status of prepared claims which devices they got, and whether these are healthy.

In: the ledger, the inventory, the CDI files and the taints of faults. Out: `status.devices` of the claims of this node,
by server-side apply, after the kubelet was answered. Nothing is written that the server already has. If the server
drops the field (its gate is off) or forbids the write, the next attempt is an hour later. The API server removes the
entries when the claim is deallocated.
Source: KEP-4817; Kubernetes API resource/v1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dra_driver.cdi.store import CdiStore
from dra_driver.claims.reports.device_status import DeviceStatus, KnownDevice, applied_statuses, own_entries
from dra_driver.inventory.offering import CurrentInventory, Inventory
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import RESOURCE_GROUP, claim_path
from dra_driver.model.errors import ApiError, DriverError, Retry
from dra_driver.model.names import replicated_name
from dra_driver.model.sharing import strategy_of
from dra_driver.model.taints import DeviceTaints
from dra_driver.model.wire import Wire
from dra_driver.plugin.effects.cdi_file import DriverCdiNames
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition, RecordedSharing
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

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
        self._names = DriverCdiNames(node.driver)
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
        nodes = _nodes(self._store.read(self._names.file(record.uid)) or {})
        made = {step.device: step.uuid or "" for step in record.steps_of(RecordedPartition)}
        sharing = {name: step for step in record.steps_of(RecordedSharing) for name in step.in_file}
        for device in record.claim().devices:
            name = self._names.device(record.uid, device.device, device.share_id)
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
    """Return the paths of the device nodes of each device in a CDI document."""
    devices = document.get("devices")
    found: dict[str, tuple[str, ...]] = {}
    for device in devices if isinstance(devices, list) else ():
        edits = device.get("containerEdits") or {}
        found[str(device.get("name"))] = tuple(str(node.get("path")) for node in edits.get("deviceNodes") or ())
    return found
