"""Geometer: cuts GPUs as an administrator declared, where nothing is cut on demand.

In: the declared geometry (a flag, or the label that NVIDIA's MIG manager is told by). Effects: partitions and MIG mode
of GPUs that no claim uses, neither prepared nor allocated. What stands there otherwise gives way: the declaration is
the administrator's word. What it makes is no claim's, so it is published as it stands and outlives every claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from dra_driver.hardware.facts import GpuFacts, Problem
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.inventory.geometry import FROM_LABEL, cuts_for
from dra_driver.model.errors import DriverError
from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.partitioner import gpu_lock
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

LABEL = "nvidia.com/mig.config"
MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"  # the GPU operator runs its MIG manager where this is "true"
GPU_SECONDS = 30.0


class NodeApi(Protocol):
    """What is asked of the Kubernetes API."""

    def get_node(self, name: str) -> Wire:
        """Read a node. Raises: ApiError."""


class Geometer:
    """Applies one declaration on one node. `allocated` names the devices of this pool in any claim's allocation."""

    def __init__(
        self,
        declared: str,
        node: str,
        *,
        api: NodeApi,
        hardware: Hardware,
        ledger: Ledger,
        locks: NodeLocks,
        allocated: Callable[[], frozenset[str]],
        changed: Callable[[], None],
    ) -> None:
        self._declared, self._node, self._api = declared, node, api
        self._hardware, self._ledger, self._locks = hardware, ledger, locks
        self._allocated, self._changed = allocated, changed
        self.problems: tuple[Problem, ...] = ()

    def apply(self) -> int:
        """Bring every GPU that nobody uses to the declared geometry; gives the number of GPUs that were changed.

        Raises: DriverError when nothing could be found out; a GPU that resists stands in `problems`.
        """
        geometry = self._geometry()
        if not geometry or not isinstance(self._hardware, Partitionable):
            self.problems = ()
            return 0
        problems: list[Problem] = []
        count = 0
        for gpu in self._hardware.discover().gpus:
            if not gpu.mig_profiles:
                continue
            try:
                fault, is_changed = self._apply(self._hardware, gpu, geometry)
            except DriverError as error:
                fault, is_changed = f"geometry {geometry} not applied: {error}", False
            if fault:
                problems.append(Problem("inventory.geometry", gpu.pci_address, fault))
            count += is_changed
        for problem in set(problems) - set(self.problems):
            log.warning("GPU not cut as declared", extra=fields(device=problem.subject, problem=problem.message))
        self.problems = tuple(problems)
        if count:
            log.info("GPUs cut as declared", extra=fields(profile=geometry, count=count))
            self._changed()
        return count

    def _geometry(self) -> str:
        if self._declared != FROM_LABEL:
            return self._declared
        labels = (self._api.get_node(self._node).get("metadata") or {}).get("labels") or {}
        if labels.get(MANAGER_LABEL) == "true":
            return ""
        return str(labels.get(LABEL, ""))

    def _apply(self, port: Partitionable, gpu: GpuFacts, geometry: str) -> tuple[str, bool]:
        """Bring one GPU to its geometry. Gives what is wrong ("" for nothing), and whether anything was changed."""
        cuts = cuts_for(gpu, geometry)
        if cuts is None:
            return f"geometry {geometry} does not fit {gpu.product_name or 'this GPU'}", False
        deadline = Deadline.after(GPU_SECONDS)
        with self._locks.hold([gpu_lock(gpu.pci_address)], deadline):
            standing = port.partitions_now(gpu)
            surplus = [p for p in standing if not any(cut.is_at(p) for cut in cuts)]
            missing = [cut for cut in cuts if not any(cut.is_at(p) for p in standing)]
            if not surplus and not missing and (gpu.mig_enabled == bool(cuts)):
                return "", False
            if any(_is_of(gpu, name) for name in self._ledger.held() | self._allocated()):
                return f"geometry {geometry} waits until no claim uses the GPU", False
            for partition in surplus:
                port.destroy_partition(gpu, partition.uuid, deadline.remaining())
            if gpu.mig_enabled != bool(cuts):
                port.set_mig_mode(gpu, bool(cuts), deadline.remaining())
            for cut in missing:
                port.create_partition(gpu, cut.profile, cut.start, deadline.remaining())
        return "", True


def _is_of(gpu: GpuFacts, device: str) -> bool:
    """Say whether a device is a GPU or cut from it."""
    whole = gpu_name(gpu.pci_address)
    return device == whole or device.startswith((f"{whole}-", f"{whole}/"))
