"""Offer text: how a GPU is offered, in words for logs and for `dra-driver devices`.

In: a GPU's facts and the policy. Out: a text. Pure. The decisions are those of `partitions`.
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.mig.partitions import MigPolicy, is_dynamic, placements_of, whole_is_offered

ON_DEMAND = "partitioned on demand"


def offer_text(gpu: GpuFacts, policy: MigPolicy) -> str:
    """Return how a GPU is offered to a scheduler that counts; if it is not partitioned on demand, with the reason.

    >>> from dra_driver.hardware.facts import GpuFacts
    >>> offer_text(GpuFacts(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=1 << 30), MigPolicy(True))
    "whole: it can't be partitioned"
    """
    if is_dynamic(gpu, policy):
        return ON_DEMAND if whole_is_offered(gpu) else f"{ON_DEMAND}, not whole: only a reset could switch MIG mode off"
    form = "as its existing partitions" if gpu.mig_enabled else "whole"
    if not placements_of(gpu, with_all=policy.with_all):
        return f"{form}: it can't be partitioned"
    if not policy.is_dynamic:
        return f"{form}: --mig=static"
    if places := policy.ownership.foreign_placements(gpu):
        profiles = {profile.gi_profile_id: profile.name for profile in gpu.mig_profiles}
        names = {(p.gi_profile_id, p.start): p.profile for p in gpu.partitions}
        found = (f"{names.get(at) or profiles.get(at[0], 'an instance')} at slice {at[1]}" for at in places)
        return f"{form}: an administrator has partitioned it ({', '.join(found)})"
    return f"{form}: only a reset could switch MIG mode on"
