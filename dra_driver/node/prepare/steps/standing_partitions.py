"""Abandoned partitions: MIG partitions that NVIDIA's DRA driver made for claims that have ended since it was removed.

That driver would destroy such a partition when its claim ends, and switch MIG mode off with the last one. This module
does the same, on nodes where partitions are made on demand: otherwise the partition would count as an administrator's,
and its GPU would never be offered whole, or be partitioned, again.

A partition is destroyed only if that driver's checkpoint of this boot names it, neither the kubelet nor a CDI file
shows its claim any more, no claim of ours holds its placement, and no process runs on it. A GPU with a partition that
the checkpoint does not name is left alone: NVIDIA's driver destroys such partitions when it starts, so it did not
partition this GPU, and the layout is an administrator's.

Each step may be repeated after a crash. That this driver has to switch MIG mode off is recorded before the first
partition of a GPU is destroyed. When every claim in the checkpoint has ended and none of its partitions is left, the
file is renamed, because a partition that is made later at the same placement may get the same UUID.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.machine import Deadline
from dra_driver.base.names import partition_name, replicated_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, Partitionable, ProcessLister
from dra_driver.kube.api import NodeEvents
from dra_driver.node.devices.partitions import Ownership, PlacementKey
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks, gpu_lock
from dra_driver.node.ledger.record import ClaimRecord
from dra_driver.node.ledger.recorded_steps import RecordedPartition
from dra_driver.node.neighbours.device_plugin import FILE, CheckpointedClaim, CheckpointedPartition, read_checkpoint

# Partition owners: determines which partitions on this node belong to this driver, according to the ledger.


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


log = logging.getLogger(__name__)

GPU_SECONDS = 10.0
LOCK_SECONDS = 5.0  # how long to wait for calls that work on the GPU's devices; the next run tries again
SET_ASIDE = ".ended"
DESTROYED = "AbandonedMigPartitionDestroyed"


class OtherClaims(Protocol):
    """The claims of other drivers on this node."""

    def may_hold(self, uid: str) -> bool:
        """Return whether a claim may still hold its devices."""


class AbandonedPartitions:
    """The partitions that another driver left, according to the checkpoint in `folder`.

    An Event reports each partition that is destroyed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        driver: str,
        hardware: Hardware,
        ledger: Ledger,
        locks: NodeLocks,
        boot_id: str,
        claims: OtherClaims,
        events: NodeEvents,
    ) -> None:
        self._file, self._driver, self._boot_id = folder / FILE, driver, boot_id
        self._hardware, self._ledger, self._gpus = hardware, ledger, GpuHolds(locks, ledger)
        self._claims, self._events = claims, events
        self._owners = PartitionOwners(hardware, ledger, locks, boot_id)
        self._logged: set[str] = set()  # what was logged: which partitions stay and why, and why the file can't be read

    def destroy(self) -> int:
        """Destroy the abandoned partitions and return how many were destroyed. Idempotent.

        A partition that can't be destroyed now is logged, and the next call tries again.
        Raises: DriverError if the hardware or the ledger can't be read.
        """
        claims = self._recorded()
        ended = [claim for claim in claims if not self._claims.may_hold(claim.uid)]
        if not any(claim.partitions for claim in ended):
            return 0
        port, facts = self._hardware, self._hardware.discover()
        if not isinstance(port, Partitionable) or facts.waiting_for:
            return 0
        named = [partition for claim in claims for partition in claim.partitions]
        living = {partition for claim in claims if claim not in ended for partition in claim.partitions}
        count = 0
        for claim in ended:
            for one in claim.partitions:
                gpu = _gpu_of(one, facts)
                if gpu is not None and one not in living:
                    count += self._try(port, gpu, one, named, claim)
        if not count and len(ended) == len(claims) and all(_is_gone(one, facts) for one in named):
            self._set_aside()
        return count

    def _recorded(self) -> tuple[CheckpointedClaim, ...]:
        """Return the claims of the checkpoint; none if it is damaged, which is logged once."""
        try:
            return read_checkpoint(self._file, driver=self._driver, boot_id=self._boot_id)
        except ValueError as error:
            fault = str(error)
        if fault not in self._logged:
            self._logged.add(fault)
            log.warning(
                "checkpoint of another driver can't be read: the partitions that it names stay",
                extra=fields(file=str(self._file), err=fault),
            )
        return ()

    def _try(
        self,
        port: Partitionable,
        gpu: GpuFacts,
        one: CheckpointedPartition,
        named: Sequence[CheckpointedPartition],
        claim: CheckpointedClaim,
    ) -> bool:
        try:
            with self._gpus.hold([gpu], Deadline.after(LOCK_SECONDS)) as holders:
                what = self._destroy(port, gpu, one, named, holders)
        except DriverError as error:
            self._log(f"{claim.uid} {error.code}", gpu, claim, str(error))
            return False
        if what:
            log.warning(
                "partition that another driver made for an ended claim destroyed",
                extra=fields(device=what, claim=claim.name, claim_uid=claim.uid),
            )
            self._events.send(DESTROYED, f"{what}: made by another driver for claim {claim.name}, which has ended")
        return bool(what)

    # The callers of the methods below hold the GPU and all its devices; `holders` is what claims have of it.

    def _destroy(
        self,
        port: Partitionable,
        gpu: GpuFacts,
        one: CheckpointedPartition,
        named: Sequence[CheckpointedPartition],
        holders: Mapping[str, str],
    ) -> str:
        """Destroy a partition and return its name; return "" if it is gone or has to stay."""
        now = replace(gpu, partitions=port.partitions_now(gpu), unusable=port.unusable_now(gpu))
        found = next((p for p in now.partitions if _is_same(one, p)), None)
        if found is None and one.placement not in now.unusable:
            return ""
        name = _name(gpu, one, found)
        if reason := self._reason_to_stay(now, name, found, named, holders):
            self._log(f"{name} {reason}", gpu, None, reason)
            return ""
        if gpu.mig_toggles_without_reset and gpu.pci_address not in self._ledger.modes(self._boot_id):
            self._ledger.set_mode(gpu.pci_address, self._boot_id)
        port.destroy_partition(gpu, found.uuid if found else "", GPU_SECONDS, placement=one.placement)
        return name

    def _reason_to_stay(
        self,
        gpu: GpuFacts,
        name: str,
        found: PartitionFacts | None,
        named: Iterable[CheckpointedPartition],
        holders: Mapping[str, str],
    ) -> str:
        ours, holding = self._owners.of_ledger(), {gpu.whole_name, gpu.passed_name, name}
        if any((replicated_name(held) or held) in holding for held in holders) or (found and ours.owns(gpu, found)):
            return "a claim of this driver holds it"
        here = [one for one in named if _is_parent(one, gpu)]
        placements = {one.placement for one in here}
        is_strange = any(not any(_is_same(one, p) for one in here) for p in ours.foreign(gpu))
        if is_strange or not placements.issuperset(set(ours.foreign_placements(gpu)).intersection(gpu.unusable)):
            return "the GPU has partitions that the other driver's checkpoint does not name"
        if found is None:
            return ""
        if not isinstance(self._hardware, ProcessLister):
            return "whether a process runs on it is not known"
        pids = self._hardware.processes(gpu, found)
        return f"process {', '.join(map(str, pids[:5]))} runs on it" if pids else ""

    def _log(self, key: str, gpu: GpuFacts, claim: CheckpointedClaim | None, reason: str) -> None:
        """Log why a partition stays, once for each `key`."""
        if key not in self._logged:
            self._logged.add(key)
            name = claim.name if claim else ""
            keys = fields(device=gpu.pci_address, claim=name, reason=reason)
            log.warning("partition that another driver made for an ended claim stays", extra=keys)

    def _set_aside(self) -> None:
        try:
            self._file.rename(self._file.with_name(f"{FILE}{SET_ASIDE}"))
        except OSError as fault:
            log.warning("checkpoint of another driver not set aside", extra=fields(err=str(fault)))
        else:
            log.info("checkpoint of another driver set aside", extra=fields(file=str(self._file)))


def _is_same(one: CheckpointedPartition, partition: PartitionFacts) -> bool:
    is_at = (partition.gi_profile_id, partition.start) == one.placement
    return partition.uuid == one.uuid if one.uuid else is_at


def _is_parent(one: CheckpointedPartition, gpu: GpuFacts) -> bool:
    return gpu.uuid == one.parent_uuid if one.parent_uuid else gpu.minor == one.minor


def _gpu_of(one: CheckpointedPartition, facts: Facts) -> GpuFacts | None:
    return next((gpu for gpu in facts.gpus if _is_parent(one, gpu)), None)


def _is_gone(one: CheckpointedPartition, facts: Facts) -> bool:
    """Return whether a partition is known to be gone, which needs an answer from its GPU."""
    gpu = _gpu_of(one, facts)
    return gpu is not None and one.placement not in gpu.unusable and not any(_is_same(one, p) for p in gpu.partitions)


def _name(gpu: GpuFacts, one: CheckpointedPartition, found: PartitionFacts | None) -> str:
    """Return the name under which this driver offers the partition's placement."""
    profile = found.profile if found else _profile(gpu, one.profile_id)
    return partition_name(gpu.pci_address, profile, one.profile_id, one.start)


def _profile(gpu: GpuFacts, profile_id: int) -> str:
    return next((p.name for p in gpu.mig_profiles if p.gi_profile_id == profile_id), "")
