"""The sentence that describes how a GPU that can be partitioned is offered.

In: a GPU's facts and the policy. Out: a sentence for logs and for `dra-driver devices`. Pure. Nothing is decided here;
`partitions` does that.
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.mig.partitions import MigPolicy, cuts_of, is_dynamic, whole_is_offered

ON_DEMAND = "cut on demand"


def how_offered(gpu: GpuFacts, policy: MigPolicy) -> str:
    """Return how a GPU is offered where the API server counts; if not partitioned on demand, also why not.

    >>> from dra_driver.hardware.facts import GpuFacts
    >>> how_offered(GpuFacts(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=1 << 30), MigPolicy(True))
    "whole: it can't be partitioned"
    """
    if is_dynamic(gpu, policy):
        return ON_DEMAND if whole_is_offered(gpu) else f"{ON_DEMAND}, not whole: only a reset could switch MIG mode off"
    stands = "as its existing partitions" if gpu.mig_enabled else "whole"
    if not cuts_of(gpu, with_all=policy.with_all):
        return f"{stands}: it can't be partitioned"
    if not policy.is_dynamic:
        return f"{stands}: --mig=static"
    if places := policy.ownership.foreign_places(gpu):
        profiles = {profile.gi_profile_id: profile.name for profile in gpu.mig_profiles}
        names = {(p.gi_profile_id, p.start): p.profile for p in gpu.partitions}
        told = (f"{names.get(at) or profiles.get(at[0], 'an instance')} at slice {at[1]}" for at in places)
        return f"{stands}: an administrator has partitioned it ({', '.join(told)})"
    return f"{stands}: only a reset could switch MIG mode on"
