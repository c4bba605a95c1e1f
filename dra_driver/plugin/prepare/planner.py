"""Planner: reads a claim and plans its preparation, waiting for what is not there yet.

After a failed Prepare the pod waits 60 to 90 s for the next one. So the call itself waits for an API server that does
not answer, for a GPU driver that is not loaded yet, and for a GPU that appears late. A device node that does not appear
soon after its driver will not appear by itself, so the call waits for it only briefly. Nothing on the node is changed.
"""

from __future__ import annotations

import math

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.claims.allocated.claim_on_node import CdiNames, devices_of, join_claim, refuse_lost
from dra_driver.claims.allocated.decoding import decode_claim
from dra_driver.claims.plan import PreparePlan, plan_prepare
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.inventory.device import Device
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.errors import GPU_LOST, NODE_MISSING, ApiError, ClaimError, DriverError, HardwareError, Retry
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.plugin.deadline import NODE_SECONDS, Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.plugin.prepare.claim_edits import ClaimEdits
from dra_driver.plugin.prepare.interruptible_pause import InterruptiblePause

POLL_SECONDS = 0.1  # between two readings of the inventory
_UNKNOWN = "claim.device-unknown"
LATE_SECONDS = 6.0  # enough for a new device, which is in the inventory within 5 s, and for a new permission
API_SECONDS = 10.0  # how long one request may take
_API_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
MAX_UNKNOWN = 1024  # claims of devices that this node does not have


class Planner:
    """Plans claims for one node."""

    def __init__(
        self,
        node: NodeIdentity,
        names: CdiNames,
        *,
        api: ClaimApi,
        hardware: Hardware,
        inventory: CurrentInventory,
        waiting: InterruptiblePause,
        ledger: Ledger,
        roots: Roots,
        has_metadata: bool,
    ) -> None:
        self._node, self._names, self._api = node, names, api
        self._metadata_of = node.driver if has_metadata else ""
        self._inventory, self._waiting = inventory, waiting
        self._edits = ClaimEdits(hardware, roots)
        self._ledger = ledger
        # By UID: whether a call waited for a device in vain.
        self._unknown: FifoCache[str, bool] = FifoCache(MAX_UNKNOWN)

    def plan_when_possible(self, namespace: str, name: str, uid: str, deadline: Deadline) -> PreparePlan:
        """Read the claim and plan it; if that fails, try again as long as that can help and there is time.

        Only the first call for a claim waits for a device that this node does not have.

        Raises: ApiError, ClaimError or HardwareError, whichever came last.
        """
        patience = _Patience(deadline)
        attempt = 0
        claim: AllocatedClaim | None = None
        while True:
            try:
                claim = claim or self._read(namespace, name, uid, deadline)
                devices = self._devices(claim)
                # If health is watched, a lost GPU stays published, with a taint, for the claims that hold it.
                refuse_lost(claim, [name for name, device in devices.items() if device.gpu.is_lost])
                return self._plan(claim, devices)
            except (ApiError, ClaimError, HardwareError) as error:
                is_unknown = error.code == _UNKNOWN
                limit = None if is_unknown and self._unknown.get(uid) else patience.until(error)
                pause = POLL_SECONDS if claim else _API_PAUSES[min(attempt, len(_API_PAUSES) - 1)]
                if isinstance(error, ApiError):
                    pause = max(pause, error.retry_after_s)
                if limit is None or limit.remaining() <= pause or self._waiting.is_over:
                    if is_unknown:
                        self._unknown.keep(uid, True)
                    raise
            attempt += 1
            self._waiting.pause(pause)

    def plan(self, claim: AllocatedClaim) -> PreparePlan:
        """Return a plan from the current inventory and device nodes, without a call of the vendor's library.

        Raises: ClaimError("claim.partition-missing") for admin access to a partition that does not exist,
        ("claim.no-admin-access") to a GPU for virtual machines; HardwareError.
        """
        return self._plan(claim, self._devices(claim))

    def _devices(self, claim: AllocatedClaim) -> dict[str, Device]:
        return devices_of(claim, self._inventory.current, self._node.pool)

    def _plan(self, claim: AllocatedClaim, devices: dict[str, Device]) -> PreparePlan:
        on_node = join_claim(claim, devices, self._names)
        may_switch_modes = any(device.counter_set and device.placement is None for device in devices.values())
        return plan_prepare(
            on_node,
            self._edits.of_devices(on_node),
            self._edits.common(on_node),
            self._names,
            mig_on=self._ledger.modes(self._node.boot_id) if may_switch_modes else (),
            metadata_of=self._metadata_of,
        )

    def _read(self, namespace: str, name: str, uid: str, deadline: Deadline) -> AllocatedClaim:
        timeout_s = min(API_SECONDS, max(0.1, deadline.remaining()))
        try:
            wire = self._api.get_claim(namespace, name, timeout_s=timeout_s)
        except ApiError as error:
            if error.code == NOT_FOUND:
                raise ClaimError("not-found", f"claim {namespace}/{name} does not exist") from error
            raise
        return decode_claim(wire, driver=self._node.driver, uid=uid)


class _Patience:
    """Until when one call tries again after each kind of error: for some time after the error first came."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._until: dict[str, Deadline] = {}

    def until(self, error: DriverError) -> Deadline | None:
        """Return the time until which trying again makes sense, or None if it does not."""
        seconds = _worth_waiting(error)
        if seconds is None:
            return None
        return self._until.setdefault(error.code, self._deadline.sooner(seconds))


def _worth_waiting(error: DriverError) -> float | None:
    """Return for how many seconds trying again makes sense, or None if it does not."""
    if isinstance(error, ApiError):
        return {Retry.NOW: math.inf, Retry.LATER: LATE_SECONDS, Retry.NEVER: None}[error.retry]
    if isinstance(error, HardwareError):
        seconds = {NODE_MISSING: NODE_SECONDS, GPU_LOST: None}.get(error.code, math.inf)
        return None if error.retry is Retry.NEVER else seconds
    return {
        "claim.hardware-waiting": math.inf,
        _UNKNOWN: LATE_SECONDS,
        "claim.partition-missing": LATE_SECONDS,
    }.get(error.code)
