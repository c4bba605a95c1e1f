"""Declared MIG: partitions GPUs as an administrator has declared, on nodes where no partitions are made on demand.

In: the declared geometry (`geometry_source`). Effects: the partitions and the MIG mode of GPUs that no prepared or
allocated claim uses. Other partitions on such a GPU are destroyed, because the administrator's declaration decides. The
partitions made here belong to no claim, so they are published as standing partitions and outlive every claim.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from dra_driver.hardware.facts import GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.inventory.mig.geometry import WantedGeometry, wanted_of
from dra_driver.kube.events import NodeEvents
from dra_driver.model.errors import DriverError
from dra_driver.model.names import is_of_gpu
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.gpu_holds import GpuHolds
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.mig.geometry_source import GeometrySource
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

GPU_SECONDS = 30.0
LOCK_SECONDS = 5.0  # how long to wait for calls that work on the GPU's devices; the next run tries again
APPLIED, NOT_APPLIED = "MigGeometryApplied", "MigGeometryNotApplied"
_CODE = "inventory.geometry"
_IN_USE = "waiting until no claim uses the GPU"


class OfferedDevices(Protocol):
    """The devices that this node offers."""

    def used(self) -> frozenset[str]:
        """Return the names of the devices that are allocated to claims. Raises: DriverError."""


class DeclaredMig:
    """Applies one declaration on one node, and sends Events about the node that report what was done or failed."""

    def __init__(
        self,
        source: GeometrySource,
        *,
        hardware: Hardware,
        ledger: Ledger,
        locks: NodeLocks,
        offered: OfferedDevices,
        events: NodeEvents,
    ) -> None:
        self._source = source
        self._hardware, self._ledger, self._gpus = hardware, ledger, GpuHolds(locks, ledger)
        self._offered, self._events = offered, events
        self.problems: tuple[Problem, ...] = ()
        self._is_aside = False
        self._used: frozenset[str] | None = None  # devices that claims hold, listed at most once per run of `apply`

    @property
    def is_declared(self) -> bool:
        """Return whether there is anything to apply."""
        return self._source.is_declared

    def suspend(self) -> int:
        """Change nothing, because partitions are made on demand; this is logged once. Return 0."""
        if not self._is_aside:
            log.info("declared geometry not applied: partitions are made on demand")
        self._is_aside, self.problems = True, ()
        return 0

    def apply(self) -> int:
        """Bring every unused GPU to the declared geometry, and return how many GPUs were changed. Idempotent.

        A GPU that can't be changed is reported in `problems`.
        Raises: DriverError if the declaration or the hardware can't be read.
        """
        configurations, name = self._source.configurations(), self._source.name()
        problems = [Problem(_CODE, "node", self._source.fault)] if self._source.fault else []
        count, self._used, self._is_aside = 0, None, False
        if name and isinstance(self._hardware, Partitionable):
            for index, gpu in enumerate(self._hardware.discover().gpus):
                if not gpu.mig_profiles:
                    continue
                try:
                    wanted = wanted_of(gpu, index, name, configurations)
                    fault, is_changed = self._apply(self._hardware, gpu, wanted)
                except DriverError as error:
                    fault, is_changed = str(error), False
                if fault:
                    problems.append(Problem(_CODE, gpu.pci_address, f"geometry {name} not applied: {fault}"))
                count += is_changed
        self._report(name, problems, count)
        return count

    def _report(self, name: str, problems: list[Problem], count: int) -> None:
        """Log, and report in Events, the new problems and the number of changed GPUs."""
        news = [problem for problem in problems if problem not in self.problems]
        self.problems = tuple(problems)
        for problem in news:
            log.warning(
                "GPU not partitioned as declared", extra=fields(device=problem.subject, problem=problem.message)
            )
        if news:
            self._events.send(NOT_APPLIED, "; ".join(f"{p.subject}: {p.message}" for p in news))
        if count:
            log.info("GPUs partitioned as declared", extra=fields(profile=name, count=count))
            self._events.send(APPLIED, f"geometry {name} applied to {count} GPU{'s' * (count > 1)}")

    def _apply(self, port: Partitionable, gpu: GpuFacts, wanted: WantedGeometry | str | None) -> tuple[str, bool]:
        """Bring one GPU to its geometry. Return what prevents that ("" if nothing does), and whether it was changed."""
        if not isinstance(wanted, WantedGeometry):
            return wanted or "", False
        seen = replace(gpu, partitions=port.partitions_now(gpu))
        if _is_as(wanted, seen):
            return "", False
        if self._used is None:
            self._used = self._offered.used()
        if self._ledger.holders([gpu.whole_name]) or any(is_of_gpu(name, gpu.whole_name) for name in self._used):
            return _IN_USE, False  # no Prepare has to wait only to have this found out under the locks
        with self._gpus.hold([seen], Deadline.after(LOCK_SECONDS)) as holders:
            if holders:
                return _IN_USE, False
            if port.partitions_now(gpu) != seen.partitions:
                return "waiting until nobody else changes its partitions", False
            _change(port, seen, wanted, Deadline.after(GPU_SECONDS))
        return "", True


def _is_as(wanted: WantedGeometry, gpu: GpuFacts) -> bool:
    is_there = all(any(placement.is_at(partition) for partition in gpu.partitions) for placement in wanted.placements)
    return is_there and not _surplus(wanted, gpu.partitions) and gpu.mig_enabled == wanted.is_enabled


def _surplus(wanted: WantedGeometry, partitions: Sequence[PartitionFacts]) -> list[PartitionFacts]:
    return [
        partition for partition in partitions if not any(placement.is_at(partition) for placement in wanted.placements)
    ]


def _change(port: Partitionable, gpu: GpuFacts, wanted: WantedGeometry, deadline: Deadline) -> None:
    """Bring a GPU to its geometry. The caller holds the GPU, and no claim has anything of it."""
    for partition in _surplus(wanted, gpu.partitions):
        port.destroy_partition(gpu, partition.uuid, deadline.remaining())
    wanted_keys = {(placement.profile.gi_profile_id, placement.start) for placement in wanted.placements}
    for unfinished in set(port.unusable_now(gpu)) - wanted_keys:  # one at a wanted placement is completed below
        port.destroy_partition(gpu, "", deadline.remaining(), placement=unfinished)
    if gpu.mig_enabled != wanted.is_enabled:
        port.set_mig_mode(gpu, wanted.is_enabled, deadline.remaining())
    for placement in wanted.placements:
        if not any(placement.is_at(partition) for partition in gpu.partitions):
            port.create_partition(gpu, placement.profile, placement.start, deadline.remaining())
