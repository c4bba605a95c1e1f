"""Planner: reads a claim and plans it, and waits for whatever is only late.

After a failed Prepare the pod waits 60 to 90 s for the next one. So the call itself waits for an API server that does
not answer, for a driver that is not loaded yet, and for a GPU that appears late. Nothing here has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.claims.allocated import AllocatedClaim, decode_claim
from dra_driver.claims.passthrough_plan import api_backends
from dra_driver.claims.plan import CdiNames, PreparePlan, devices_of, is_made, plan_prepare, refuse_lost
from dra_driver.hardware.passthrough.nodes import api_node
from dra_driver.hardware.port import AdminNodes, ChannelOffering, ClaimWide, Hardware, Partitionable, Roots
from dra_driver.inventory.device import Device
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.edits import Edits, merge
from dra_driver.model.errors import GPU_LOST, ApiError, ClaimError, DriverError, HardwareError, Retry
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.shares import DeviceType
from dra_driver.model.wire import ClaimWire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.plugin.prepare.waiting import InterruptiblePause

POLL_SECONDS = 0.1  # how often to look at the inventory again
LATE_SECONDS = 6.0  # a new device is in the inventory within 5 s, and a permission reaches the API server sooner
API_SECONDS = 10.0  # for one request
_API_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
MOST_KEPT = 16  # claims and plans that are kept until they are asked for again


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
        self._roots = roots
        self._node, self._names, self._api = node, names, api
        self._metadata_of = node.driver if has_metadata else ""
        self._hardware, self._inventory, self._waiting = hardware, inventory, waiting
        self._claim_wide = hardware if isinstance(hardware, ClaimWide) else None  # costly in each call
        self._ledger = ledger
        self._claims: FifoCache[str, tuple[ClaimWire, AllocatedClaim]] = FifoCache(MOST_KEPT)
        self._plans: FifoCache[str, tuple[tuple[object, ...], PreparePlan]] = FifoCache(MOST_KEPT)

    def plan_when_possible(self, namespace: str, name: str, uid: str, deadline: Deadline) -> PreparePlan:
        """Read the claim and plan it; try again while that can help and there is time.

        Raises: ApiError, ClaimError or HardwareError, whichever was seen last.
        """
        late = deadline.sooner(LATE_SECONDS)
        attempt = 0
        claim: AllocatedClaim | None = None
        while True:
            try:
                claim = claim or self._read(namespace, name, uid, deadline)
                devices = self._devices(claim)
                # A lost GPU is still published where health is watched, with a taint, for the claims that hold it.
                refuse_lost(claim, [name for name, device in devices.items() if device.gpu.is_lost])
                return self._plan(claim, devices)
            except (ApiError, ClaimError, HardwareError) as error:
                limit = _patience(error, deadline, late)
                pause = POLL_SECONDS if claim else _API_PAUSES[min(attempt, len(_API_PAUSES) - 1)]
                if isinstance(error, ApiError):
                    pause = max(pause, error.retry_after_s)
                if limit is None or limit.remaining() <= pause or self._waiting.is_over:
                    raise
            attempt += 1
            self._waiting.pause(pause)

    def plan(self, claim: AllocatedClaim) -> PreparePlan:
        """Return a plan from the current inventory and device nodes, without a call into the vendor's library.

        Raises: ClaimError("claim.partition-missing" for admin access to a partition that does not exist,
        "claim.no-admin-access" to a GPU for virtual machines), HardwareError.
        """
        return self._plan(claim, self._devices(claim))

    def _devices(self, claim: AllocatedClaim) -> dict[str, Device]:
        """Return the claim's devices in the current inventory, by name. Raises: ClaimError."""
        foreign = sorted({device.pool for device in claim.devices} - {self._node.pool})
        if foreign:
            raise ClaimError(
                "other-pool",
                f"claim {claim.namespace}/{claim.name} has devices of pool {', '.join(foreign)}, "
                f"but this node's pool is {self._node.pool}",
                hint="another driver's slices were used; delete the pod and this claim so that another is allocated",
            )
        return devices_of(claim, self._inventory.current)

    def _plan(self, claim: AllocatedClaim, devices: Mapping[str, Device]) -> PreparePlan:
        edits = {name: self._edits(claim, device) for name, device in devices.items() if not is_made(claim, device)}
        may_switch = any(device.counter_set and device.cut is None for device in devices.values())
        mig_on = self._ledger.modes(self._node.boot_id) if may_switch else ()
        common = self._common_edits(claim, devices)
        given = (devices, edits, common, mig_on)
        kept = self._plans.get(claim.uid)
        if kept is not None and kept[1].claim is claim and kept[0] == given:  # equal arguments give equal plans
            return kept[1]
        metadata_of = self._metadata_of
        plan = plan_prepare(claim, devices, edits, common, self._names, mig_on=mig_on, metadata_of=metadata_of)
        self._plans.keep(claim.uid, (given, plan))
        return plan

    def _common_edits(self, claim: AllocatedClaim, devices: Mapping[str, Device]) -> Edits:
        """Return what all devices of a claim need.

        A virtual machine needs nothing of the host's driver; nor does a channel, which comes beside GPUs.
        """
        common = self._hardware.common_edits()
        if self._claim_wide is not None:
            gpus = [device.gpu for device in devices.values() if device.type is not DeviceType.VFIO]
            common = merge((common, self._claim_wide.claim_edits(gpus)))
        types = {device.type for device in devices.values()}
        if types <= {DeviceType.VFIO, DeviceType.IMEX_CHANNEL}:
            common = Edits(env=common.env)
        if DeviceType.VFIO not in types:
            return common
        nodes = (api_node(self._roots, prefers_iommufd=backend) for backend in api_backends(claim, devices))
        return merge((common, Edits(device_nodes=tuple(nodes))))

    def _edits(self, claim: AllocatedClaim, device: Device) -> Edits:
        if device.type is DeviceType.VFIO:
            raise ClaimError(
                "no-admin-access",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, a GPU for virtual machines",
                hint='select devices of other types: .type != "vfio"; admin access takes no GPU from its driver',
            )
        if device.type is DeviceType.IMEX_CHANNEL:
            return self._hardware.channel_edits() if isinstance(self._hardware, ChannelOffering) else Edits()
        partition = device.partition
        if device.cut is not None and partition is None and isinstance(self._hardware, Partitionable):
            partition = self._hardware.place_now(device.gpu, device.cut.profile, device.cut.start).partition
        if device.cut is not None and partition is None:
            raise ClaimError(
                "partition-missing",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, which does not exist now",
                hint="admin access never makes a partition; this one exists while a claim that owns it is prepared",
                retry=Retry.LATER,
            )
        edits = self._hardware.device_edits(device.gpu, partition)
        is_admin = any(one.is_admin for one in claim.devices if one.device == device.name)
        if is_admin and isinstance(self._hardware, AdminNodes):
            return merge((edits, self._hardware.admin_edits(device.gpu)))
        return edits

    def _read(self, namespace: str, name: str, uid: str, deadline: Deadline) -> AllocatedClaim:
        timeout_s = min(API_SECONDS, max(0.1, deadline.remaining()))
        try:
            wire = self._api.get_claim(namespace, name, timeout_s=timeout_s)
        except ApiError as error:
            if error.code == NOT_FOUND:
                raise ClaimError("not-found", f"claim {namespace}/{name} does not exist") from error
            raise
        kept = self._claims.get(uid)
        if kept is not None and kept[0] is wire:  # the same bytes as the last time
            return kept[1]
        claim = decode_claim(wire, driver=self._node.driver, uid=uid)
        self._claims.keep(uid, (wire, claim))
        return claim


def _patience(error: DriverError, deadline: Deadline, late: Deadline) -> Deadline | None:
    """Return the time until which trying again makes sense, or None if it does not."""
    if isinstance(error, ApiError):
        if error.retry is Retry.NOW:
            return deadline
        return late if error.retry is Retry.LATER else None
    if isinstance(error, HardwareError):
        return None if error.retry is Retry.NEVER or error.code == GPU_LOST else deadline
    return {
        "claim.hardware-waiting": deadline,
        "claim.device-unknown": late,
        "claim.partition-missing": late,
    }.get(error.code)
