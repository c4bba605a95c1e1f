"""Facts of a profile: what discovery would find on a node whose hardware a profile describes.

Pure. In: a profile, the name of the node, and the partitions that exist now. Out: facts as a real vendor would return
them. UUIDs and NVLink groups are derived from the name of the node and PCI addresses.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from dra_driver.base.errors import InputError
from dra_driver.hardware.facts import MIXED, Facts, GpuFacts, MigProfile, PartitionFacts, Problem, mixed_mig_problems
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.simulated.models import MigTable, Placement
from dra_driver.hardware.simulated.partitioning import GpuChanges, current_placements
from dra_driver.hardware.simulated.profile import Profile, SimulatedGpu

_PCI_VENDOR = 0x10DE

# Only this driver uses the name space; another one would change all UUIDs of simulated hardware.
_SPACE = uuid.UUID("6d3b9ac6-35cb-5c5f-9f6a-6f1d3c1b9a11")


def facts_of(profile: Profile, node_name: str) -> Facts:
    """Return what discovery would find on a node with this profile. Pure."""
    if profile.waiting_for:
        return Facts("simulated", waiting_for=profile.waiting_for)
    gpus = sorted(profile.gpus, key=lambda gpu: gpu.pci_address)
    found = tuple(_gpu_facts(profile, gpu, node_name) for gpu in gpus if not gpu.is_lost)
    lost = [Problem("hardware.gpu-lost", gpu.pci_address, "the GPU is lost") for gpu in gpus if gpu.is_lost]
    return Facts(
        "simulated",
        gpus=found,
        driver_version=profile.driver_version,
        runtime_version=profile.cuda_driver_version,
        problems=(*lost, *mixed_mig_problems(found, profile.driver_version)),
    )


@dataclass(frozen=True, slots=True)
class ChangedFacts:
    """The facts of a profile with the changes that were made to its GPUs since the node started."""

    initial: Facts
    facts: Facts
    changes: Mapping[str, GpuChanges] = field(default_factory=dict)

    def after(self, changes: Mapping[str, GpuChanges], profile: Profile, node_name: str) -> ChangedFacts:
        """Return the facts with these changes. Only the facts of GPUs whose changes differ are computed again."""
        of_profile = {gpu.pci_address: gpu for gpu in profile.gpus}
        gpus = []
        for initial, last in zip(self.initial.gpus, self.facts.gpus, strict=True):
            pci = initial.pci_address
            now = changes.get(pci)
            if now == self.changes.get(pci):
                gpus.append(last)
            else:
                gpus.append(_partitioned_again(initial, of_profile[pci], now, node_name) if now else initial)
        mixing = mixed_mig_problems(gpus, profile.driver_version)
        kept = (problem for problem in self.initial.problems if problem.code != MIXED)
        facts = replace(self.initial, gpus=tuple(gpus), problems=(*kept, *mixing))
        return ChangedFacts(self.initial, facts, changes)


def _partitioned_again(initial: GpuFacts, gpu: SimulatedGpu, changes: GpuChanges, node_name: str) -> GpuFacts:
    now = current_placements(gpu, changes)
    return replace(initial, mig_enabled=now is not None, partitions=_partitions(now, initial.pci_address, node_name))


def _gpu_facts(profile: Profile, gpu: SimulatedGpu, node_name: str) -> NvidiaGpu:
    model = gpu.model
    domain = gpu.nvlink_fabric
    if gpu.nvlink_group:
        domain = str(uuid.uuid5(_SPACE, f"{node_name}/nvlink/{gpu.nvlink_group}"))
    links = gpu.links_up if gpu.links_up is not None else model.nvlinks if domain else None
    return NvidiaGpu(
        uuid=f"GPU-{uuid.uuid5(_SPACE, f'{node_name}/{gpu.pci_address}')}",
        pci_address=gpu.pci_address,
        minor=gpu.minor,
        nodes=(f"nvidia{gpu.minor}",),
        memory_bytes=None if model.memory_mib is None else model.memory_mib << 20,
        product_name=model.product_name,
        brand=model.brand,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        addressing_mode=profile.addressing_mode,
        numa_node=gpu.numa_node,
        pcie_root=gpu.pcie_root,
        link_domain=domain,
        nvlink_count=links,
        mig_capable=model.mig_capable,
        mig_enabled=gpu.mig is not None,
        ecc_enabled=gpu.ecc_enabled,
        serial=gpu.serial,
        vbios_version=gpu.vbios_version,
        memory_bandwidth_bytes_per_s=model.memory_bandwidth_gb_per_s and model.memory_bandwidth_gb_per_s * 10**9,
        power_limit_max_w=model.power_limit_max_w,
        sm_clock_max_mhz=model.sm_clock_max_mhz,
        partitions=_partitions(gpu.mig, gpu.pci_address, node_name),
        mig_profiles=_mig_profiles(model.mig) if model.mig else (),
        mig_toggles_without_reset=bool(model.mig and model.mig.toggles_without_reset),
        pci_id=int(model.pci_device_id, 16) << 16 | _PCI_VENDOR if model.pci_device_id else None,
    )


def _partitions(
    placements: tuple[Placement, ...] | None, pci_address: str, node_name: str
) -> tuple[PartitionFacts, ...]:
    in_order = sorted(placements or (), key=lambda placement: placement.start)
    return tuple(partition_facts(placement, f"{node_name}/{pci_address}") for placement in in_order)


def _mig_profiles(table: MigTable) -> tuple[MigProfile, ...]:
    """Return the profiles about which everything is known, in order of id."""
    made = []
    for profile in table.profiles:
        engines = profile.engines
        if not profile.has_figures or engines is None or not profile.starts:
            continue
        made.append(
            MigProfile(
                name=profile.name,
                gi_profile_id=profile.gi_profile_id or 0,
                slices=profile.compute_slices,
                size=profile.memory_slices,
                starts=profile.starts,
                memory_bytes=(profile.memory_mib or 0) << 20,
                multiprocessors=profile.multiprocessors or 0,
                copy_engines=engines.copy,
                decoders=engines.decoders,
                encoders=engines.encoders,
                jpeg_engines=engines.jpeg,
                ofa_engines=engines.ofa,
                max_instances=profile.max_instances,
            )
        )
    return tuple(sorted(made, key=lambda profile: profile.gi_profile_id))


@lru_cache(maxsize=1024)  # every call about a partition needs them
def partition_facts(placement: Placement, gpu: str) -> PartitionFacts:
    """Return the facts of a partition; the decoder has checked that all of them are known."""
    profile, engines = placement.profile, placement.profile.engines
    if profile.gi_profile_id is None or profile.memory_mib is None or not (profile.multiprocessors and engines):
        raise InputError("profile", f"the figures of {profile.name} are not known")
    return PartitionFacts(
        uuid=f"MIG-{uuid.uuid5(_SPACE, f'{gpu}/{profile.name}/{placement.start}')}",
        profile=profile.name,
        gi_profile_id=profile.gi_profile_id,
        gi_id=placement.start + 1,
        ci_id=0,
        start=placement.start,
        size=profile.memory_slices,
        memory_bytes=profile.memory_mib << 20,
        multiprocessors=profile.multiprocessors,
        copy_engines=engines.copy,
        decoders=engines.decoders,
        encoders=engines.encoders,
        jpeg_engines=engines.jpeg,
        ofa_engines=engines.ofa,
    )
