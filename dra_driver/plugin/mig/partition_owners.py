"""Partition owners: determines which partitions on this node belong to this driver, according to the ledger.

In: facts as just discovered. Out: the same facts, read again where needed, and an `Ownership`. A partition that the
ledger does not know may have been made or destroyed for a claim during the discovery. So its GPU is read again under
the GPU's lock, which keeps other calls from making or destroying partitions. If another call has that lock, the last
result stays valid and `is_settled` is false: this has to be repeated, because nothing may report when that call ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.inventory.mig.partitions import Ownership, PlacementKey
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition
from dra_driver.plugin.locks import NodeLocks, gpu_lock


class PartitionOwners:
    """Determines the owners of partitions. Only one thread may use it."""

    def __init__(self, hardware: Hardware, ledger: Ledger, locks: NodeLocks, boot_id: str) -> None:
        self._hardware, self._ledger, self._locks, self._boot_id = hardware, ledger, locks, boot_id
        self._foreign: frozenset[str] = frozenset()  # the UUIDs of partitions that were an administrator's last time
        self._foreign_placements: frozenset[PlacementKey] = frozenset()
        self.is_settled = True  # whether every GPU for which that was needed could be read again under its lock

    def determine(self, facts: Facts) -> tuple[Facts, Ownership]:
        """Return the facts, and the owner of each partition. Raises: LedgerError."""
        known = self.of_ledger()
        self.is_settled = True
        gpus = tuple(
            self._read_again(gpu, known) if known.foreign_placements(gpu) else (gpu, known) for gpu in facts.gpus
        )
        uuids = known.uuids.union(*(ownership.uuids for _, ownership in gpus))
        placements = known.placements.union(*(o.placements for _, o in gpus))
        recorded = known.recorded.union(*(o.recorded for _, o in gpus))
        ownership = replace(known, uuids=uuids, placements=placements, recorded=recorded)
        fresh = replace(facts, gpus=tuple(gpu for gpu, _ in gpus))
        self._foreign = frozenset(p.uuid for gpu in fresh.gpus for p in ownership.foreign(gpu))
        self._foreign_placements = frozenset(
            (gpu.pci_address, *placement) for gpu in fresh.gpus for placement in ownership.foreign_placements(gpu)
        )
        return fresh, ownership

    def of_ledger(self) -> Ownership:
        """Return the ownership according to the ledger; only claims with partitions are parsed. Raises: LedgerError."""
        holds = [hold for hold in self._ledger.holds() if not hold.is_part]
        steps = [step for record in self._ledger.with_step(RecordedPartition) for step in self._ours(record)]
        return Ownership(
            uuids=frozenset(step.uuid for step in steps if step.uuid),
            placements=frozenset(step.placement for step in steps if step.placement and not step.uuid),
            held=frozenset(hold.device for hold in holds),
            modes=self._ledger.modes(self._boot_id),
            forms=frozenset((hold.device, bool(hold.share_id)) for hold in holds),
            recorded=frozenset(step.placement for step in steps if step.placement),
            tenants=frozenset((hold.shared_device, hold.namespace) for hold in holds if hold.shared_device),
        )

    def held(self) -> frozenset[str]:
        """Return the names of the devices that claims hold. Raises: LedgerError."""
        return frozenset(name for name in self._ledger.held() if "/" not in name)

    def _ours(self, record: ClaimRecord) -> Iterator[RecordedPartition]:
        return (step for step in record.steps_of(RecordedPartition) if step.is_ours(self._boot_id))

    def _read_again(self, gpu: GpuFacts, known: Ownership) -> tuple[GpuFacts, Ownership]:
        """Return one GPU, read again under its lock, so that no call is working on it, and the ownership then."""
        if not isinstance(self._hardware, Partitionable):
            return gpu, known
        try:
            with self._locks.hold([gpu_lock(gpu.pci_address)], Deadline.after(0)):
                now, unusable = self._hardware.partitions_now(gpu), self._hardware.unusable_now(gpu)
                return replace(gpu, partitions=now, unusable=unusable), self.of_ledger()
        except DriverError:
            self.is_settled = False
            ours = frozenset(p.uuid for p in gpu.partitions) - self._foreign
            recorded = frozenset((gpu.pci_address, *placement) for placement in gpu.unusable) - self._foreign_placements
            return gpu, replace(known, uuids=known.uuids | ours, recorded=known.recorded | recorded)
