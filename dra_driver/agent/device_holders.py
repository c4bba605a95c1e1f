"""Device holders of a node: the claims, processes and other drivers that have its devices.

Nothing is cached here: each question is answered from the ledger, the kubelet and the vendor's library as they are now.
"""

from __future__ import annotations

from dra_driver.agent.other_drivers import OtherDrivers
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.model.errors import DriverError
from dra_driver.model.names import gpu_of_vfio_device
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.plugin.node_claims.device_holders import held_among, holding_claims, processes_on
from dra_driver.validation.tested_devices import unshared_name


class NodeDeviceHolders:
    """The holders of this node's devices. Any thread may call any method."""

    def __init__(
        self,
        hardware: Hardware,
        ledger: Ledger,
        *,
        inventory: CurrentInventory,
        allocated: AllocatedDevices,
        other_drivers: OtherDrivers,
    ) -> None:
        self._hardware, self._ledger, self._inventory = hardware, ledger, inventory
        self._allocated, self._other_drivers = allocated, other_drivers

    def held(self) -> frozenset[str]:
        """Return the names of the devices that claims hold or are allocated, of this driver or another.

        Raises: DriverError.
        """
        every = tuple(self._inventory.current.by_name.values())
        free = {device.name for device in self._other_drivers.offer(every)}
        foreign = frozenset(device.name for device in every if device.name not in free)
        held = self._ledger.held() | self._allocated.names(is_patient=False) | foreign
        # A device for virtual machines is not used through the host's driver.
        return frozenset(name for name in held if gpu_of_vfio_device(name) is None)

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return who uses a device, in words; empty if it is free."""
        if self._other_drivers.is_serving:
            return "another driver or a device plugin serves this node's GPUs"
        try:
            held = held_among(self.held(), unshared_name(gpu, partition))
        except DriverError as error:
            return f"it can't be determined which devices claims have: {error}"
        return held or processes_on(self._hardware, gpu, partition)

    def claims_of(self, device: str) -> str:
        """Return, in words, the claims that hold a device or parts of it according to the ledger; empty for none."""
        return holding_claims(self._ledger, device)

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return no fault: the health monitor finds the faults, and keeps faulty devices from being tested."""
        del gpu, partition
        return ""
