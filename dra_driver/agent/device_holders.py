"""Device holders of a node: claims, processes and other drivers that have its devices.

Nothing is cached here: each question is answered from the ledger, the kubelet and the vendor's library as they are now.
"""

from __future__ import annotations

from dra_driver.agent.neighbours import Neighbours
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.model.errors import DriverError
from dra_driver.model.names import passed_gpu
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.plugin.node_claims.device_holders import held_among, holding_claims, processes_on
from dra_driver.validation.tested_devices import unshared_name


class NodeDeviceHolders:
    """Who has the devices of this node. Any thread may call any method."""

    def __init__(
        self,
        hardware: Hardware,
        ledger: Ledger,
        *,
        inventory: CurrentInventory,
        allocated: AllocatedDevices,
        neighbours: Neighbours,
    ) -> None:
        self._hardware, self._ledger, self._inventory = hardware, ledger, inventory
        self._allocated, self._neighbours = allocated, neighbours

    def held(self) -> frozenset[str]:
        """Return the names of devices that claims hold or were given, by this driver or another.

        Raises: DriverError.
        """
        every = tuple(self._inventory.current.by_name.values())
        free = {device.name for device in self._neighbours.offer(every)}
        foreign = frozenset(device.name for device in every if device.name not in free)
        held = self._ledger.held() | self._allocated.names(is_patient=False) | foreign
        return frozenset(
            name for name in held if passed_gpu(name) is None
        )  # a device for virtual machines is not used through the host's driver

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return who uses a device, in words; empty if it is free."""
        if self._neighbours.is_serving:
            return "another driver or a device plugin serves this node's GPUs"
        try:
            held = held_among(self.held(), unshared_name(gpu, partition))
        except DriverError as error:
            return f"it can't be determined which devices claims have: {error}"
        return held or processes_on(self._hardware, gpu, partition)

    def claims_of(self, device: str) -> str:
        """Return which claims the ledger has for a device or parts of it, in words; empty for none."""
        return holding_claims(self._ledger, device)

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return no fault: the health monitor reads the library, and keeps faulty devices from being tested."""
        del gpu, partition
        return ""
