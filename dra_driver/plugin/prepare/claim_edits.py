"""Claim edits: the container edits for each device of a claim, and for all of them together, from the hardware."""

from __future__ import annotations

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.claims.allocated.claim_on_node import ClaimOnNode
from dra_driver.hardware.passthrough.nodes import api_node
from dra_driver.hardware.port import AdminNodes, ChannelOffering, ClaimWide, Hardware, Partitionable, Roots
from dra_driver.inventory.device import Device
from dra_driver.model.edits import Edits, merge
from dra_driver.model.errors import ClaimError, HardwareError, Retry
from dra_driver.model.shares import DeviceType

_WITHOUT_DRIVER = (DeviceType.VFIO, DeviceType.IMEX_CHANNEL)  # device types that need nothing of the GPU driver


class ClaimEdits:
    """The edits of claims on one node, from its hardware and its device nodes below `roots`."""

    def __init__(self, hardware: Hardware, roots: Roots) -> None:
        self._hardware, self._roots = hardware, roots
        self._claim_wide = hardware if isinstance(hardware, ClaimWide) else None  # the check would slow down each call

    def of_devices(self, on_node: ClaimOnNode) -> dict[str, Edits]:
        """Return the edits of each device that no step creates, by name.

        Raises: ClaimError("claim.partition-missing") for admin access to a partition that does not exist,
        ("claim.no-admin-access") to a GPU for virtual machines; HardwareError.
        """
        made, edits = on_node.made, dict[str, Edits]()
        for one in on_node.results:
            name = one.device.name
            if name not in made:
                try:
                    known = edits[name] if name in edits else self._of_device(one.device, on_node.claim)
                except HardwareError as error:
                    error.message = f"device {name}: {error.message}"
                    raise
                edits[name] = self._with_admin_nodes(known, one.device) if one.result.is_admin else known
        return edits

    def common(self, on_node: ClaimOnNode) -> Edits:
        """Return the edits that the claim needs once, for all of its devices.

        A virtual machine needs nothing of the host's GPU driver, nor does a channel, which a pod has beside GPUs.
        """
        parts = [self._hardware.common_edits()]
        devices = {one.device.name: one.device for one in on_node.results}.values()
        if self._claim_wide is not None:
            parts.append(self._claim_wide.claim_edits([one.gpu for one in devices if one.type is not DeviceType.VFIO]))
        if all(device.type in _WITHOUT_DRIVER for device in devices):
            parts = [Edits(env=part.env) for part in parts]
        if machines := [one.iommu for one in on_node.results if one.device.type is DeviceType.VFIO]:
            backends = sorted({one.prefers_iommufd for one in machines if one.has_api_device})
            nodes = (api_node(self._roots, prefers_iommufd=backend) for backend in backends)
            parts.append(Edits(device_nodes=tuple(nodes)))
        return merge(parts) if len(parts) > 1 else parts[0]

    def _with_admin_nodes(self, edits: Edits, device: Device) -> Edits:
        if device.type in _WITHOUT_DRIVER or not isinstance(self._hardware, AdminNodes):
            return edits
        return merge((edits, self._hardware.admin_edits(device.gpu)))

    def _of_device(self, device: Device, claim: AllocatedClaim) -> Edits:
        if device.type is DeviceType.VFIO:
            raise ClaimError(
                "no-admin-access",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, a GPU for virtual machines",
                hint='select devices of other types: .type != "vfio"; admin access takes no GPU from its driver',
            )
        if device.type is DeviceType.IMEX_CHANNEL:
            return self._hardware.channel_edits() if isinstance(self._hardware, ChannelOffering) else Edits()
        partition = device.partition
        if device.placement is not None and partition is None and isinstance(self._hardware, Partitionable):
            profile, start = device.placement.profile, device.placement.start
            partition = self._hardware.placement_now(device.gpu, profile, start).partition
        if device.placement is not None and partition is None:
            raise ClaimError(
                "partition-missing",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, which does not exist now",
                hint="admin access never makes a partition; this one exists while a claim that owns it is prepared",
                retry=Retry.LATER,
            )
        return self._hardware.device_edits(device.gpu, partition)
