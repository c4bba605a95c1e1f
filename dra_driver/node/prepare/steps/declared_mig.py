"""Declared MIG: partitions GPUs as an administrator has declared, on nodes where none are made on demand.

In: rules, the node's labels, a file with configurations. The file (a mounted ConfigMap) is read again when it has
changed; while it is invalid, its last valid content stays in force. Only GPUs of which no claim has anything are
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, InputError, NodeError
from dra_driver.base.machine import Deadline, Stamp, stamp_of
from dra_driver.base.names import is_of_gpu
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.kube.api import NodeEvents
from dra_driver.kube.paths import NodeApi
from dra_driver.node.devices.geometry import (
    FROM_LABEL,
    Configurations,
    GeometryRule,
    WantedGeometry,
    geometry_of,
    wanted_of,
)
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks
from dra_driver.node.neighbours.pod_resources import NodePods

log = logging.getLogger(__name__)

# The geometry that is declared for this node: its name, and the configurations among which it is looked up.

LABEL = "nvidia.com/mig.config"
MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"  # "true" on nodes where the GPU Operator may run its MIG manager
MANAGER_POD = "nvidia-mig-manager-"  # the prefix of the pods of its DaemonSet


class PodsOfNode(Protocol):
    """The question that this module asks the kubelet."""

    def pods(self) -> NodePods:
        """Return this node's pods. Raises: NodeError."""


class GeometrySource:
    """The declared geometry of one node. Only one thread may use it."""

    def __init__(
        self, rules: tuple[GeometryRule, ...], node: str, *, api: NodeApi, kubelet: PodsOfNode, file: Path | None = None
    ) -> None:
        self._rules, self._node, self._api, self._kubelet, self._file = rules, node, api, kubelet, file
        self._stamp: Stamp | None = None
        self._configurations: Configurations = {}
        self.fault = ""  # what is wrong with the file

    @property
    def is_declared(self) -> bool:
        """Return whether a geometry is declared for any node."""
        return bool(self._rules)

    def name(self) -> str:
        """Return the name of the geometry that is in force now; "" if there is none. Raises: ApiError."""
        needs_labels = any(rule.geometry == FROM_LABEL or "=" in rule.selector for rule in self._rules)
        labels: Mapping[str, str] = {}
        if needs_labels:
            labels = (self._api.get_node(self._node).get("metadata") or {}).get("labels") or {}
        found = geometry_of(self._rules, self._node, labels)
        if found != FROM_LABEL:
            return found
        wanted = str(labels.get(LABEL, ""))
        return "" if not wanted or self._has_manager(labels) else wanted

    def configurations(self) -> Configurations:
        """Return the configurations in the file; none if there is no file."""
        if self._file is None:
            return {}
        try:
            stamp = stamp_of(self._file)
            if stamp is None or stamp != self._stamp:
                self._configurations, self._stamp = _read(self._file), stamp
                log.info("MIG configurations read", extra=fields(file=str(self._file), count=len(self._configurations)))
            self.fault = ""
        except InputError as error:
            self._complain(str(error))
        return self._configurations

    def _complain(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("MIG configurations not read", extra=fields(file=str(self._file), err=fault))
        self.fault = fault

    def _has_manager(self, labels: Mapping[str, str]) -> bool:
        """Return whether NVIDIA's MIG manager runs on this node and acts on the label.

        If the kubelet does not answer, the label that deploys the manager decides.
        """
        try:
            pods = self._kubelet.pods().pods
        except NodeError:
            return labels.get(MANAGER_LABEL) == "true"
        return any(name.startswith(MANAGER_POD) for _, name in pods)


def _read(file: Path) -> Configurations:
    """Read the file. Raises: InputError."""
    from dra_driver.node.devices.geometry_file import read_configurations  # noqa: PLC0415 - pydantic, only for this

    return read_configurations(file)


# The GPUs of this node are brought to the declared geometry.

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
