"""Action choice: what to do about the faults of one GPU.

Pure. In: the current faults, the policy, facts about the GPU. Out: the most important fault that has an action, with
that action and the GPUs to be drained too. The driver's own report about a GPU comes first: if it asks for a reboot, or
for something else that is not a reset, the GPU is not reset.
Source: NVIDIA, GPU memory error management (drain P2P: once all peer-to-peer traffic has ended, the recovery action is
read again); NVIDIA, nvidia-smi(1), --gpu-reset (linked GPUs older than Ampere are reset together).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts
from dra_driver.health.fault import Fault, FaultKey
from dra_driver.remediation.policy import PeerRule, RemediationAction, RemediationPolicy

DRAIN_P2P, BUS_RESET = "drain-p2p", "bus-reset"  # values of needs-reset (health/indications.py)


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """The fault that decides, and the action against it. `peers` are PCI addresses of GPUs that are drained too.

    `awaits_driver`: the driver reports the action only once the peers are drained.
    """

    fault: Fault
    action: RemediationAction
    peers: tuple[str, ...] = ()
    awaits_driver: bool = False


def choose_action(
    gpu: GpuFacts, faults: Iterable[Fault], policy: RemediationPolicy, gpus: Sequence[GpuFacts] = ()
) -> ActionChoice | None:
    """Return what to do about the faults of a GPU; None if there is nothing to do. `gpus` are all GPUs of the node."""
    own = [one for one in faults if one.subject.gpu == gpu.pci_address and not one.is_mild]
    for fault in sorted(own, key=lambda one: (one.key.rank, one.since)):
        action = action_for(fault, policy)
        if action is RemediationAction.NONE:
            continue
        awaits = action is RemediationAction.RESET and fault.value == DRAIN_P2P
        return ActionChoice(fault, action, _peers(gpu, fault, action, policy, gpus), awaits)
    return None


def action_for(fault: Fault, policy: RemediationPolicy) -> RemediationAction:
    """Return the action that a fault gets. A reset through nvidia-smi does not replace a reset of the bus."""
    action = policy.actions.get(fault.key, RemediationAction.NONE)
    is_other_reset = fault.key is FaultKey.NEEDS_RESET and fault.value == BUS_RESET
    return RemediationAction.REBOOT if action is RemediationAction.RESET and is_other_reset else action


def _peers(
    gpu: GpuFacts, fault: Fault, action: RemediationAction, policy: RemediationPolicy, gpus: Sequence[GpuFacts]
) -> tuple[str, ...]:
    if action is not RemediationAction.RESET or policy.peers is PeerRule.NEVER or gpu.link_domain is None:
        return ()
    if policy.peers is PeerRule.AUTO and fault.value != DRAIN_P2P and not gpu.is_reset_with_peers:
        return ()
    linked = (one for one in gpus if one.link_domain == gpu.link_domain)
    return tuple(sorted(one.pci_address for one in linked if one.pci_address != gpu.pci_address))
