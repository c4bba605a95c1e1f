"""Separation: the last check that keeps the MPS clients of different namespaces apart.

In: a plan, and what the ledger knows about its devices. Out: nothing, or an error before the first effect. The
scheduler already follows the rule (shares are offered by namespace, with device classes and admission policies to
match), so a claim that is refused here was allocated before the separation was configured, or in a way that
circumvented it. A failed Prepare never moves a pod to another node, so the error says what to delete to make the
scheduler choose again.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.claims.plan import PreparePlan
from dra_driver.claims.steps.sharing import SharingStep
from dra_driver.model.errors import ClaimError, Retry
from dra_driver.model.sharing import MpsSettings
from dra_driver.plugin.ledger.device_effects import DeviceEffects, EffectHolder


def require_separation(plan: PreparePlan, effects: DeviceEffects) -> None:
    """Refuse a plan that would put two namespaces on one MPS daemon. Raises: ClaimError, LedgerError."""
    claim = plan.claim
    for step in plan.steps:
        if not isinstance(step, SharingStep) or not isinstance(step.settings, MpsSettings):
            continue
        if step.tenant and step.tenant != claim.namespace:
            raise ClaimError(
                "sharing-tenant",
                f"{step.device.name} is shared by MPS only in namespace {step.tenant}, but claim {claim.namespace}/"
                f"{claim.name} is in namespace {claim.namespace}",
                hint=_what_to_delete(claim.namespace, claim.name),
                retry=Retry.LATER,
            )
        in_force = None if step.settings.across_namespaces else effects.get(step.device.name)
        if in_force is not None and isinstance(in_force.settings, MpsSettings):
            others = [holder for holder in effects.holders(step.device.name) if holder.uid != claim.uid]
            require_one_namespace(step.device.name, claim.namespace, claim.name, others)


def require_one_namespace(device: str, namespace: str, name: str, others: Iterable[EffectHolder]) -> None:
    """Refuse a claim if claims of another namespace hold the device. Raises: ClaimError."""
    foreign = [holder for holder in others if holder.name and holder.namespace != namespace]
    if not foreign:
        return
    theirs, listed = ", ".join(sorted({h.namespace for h in foreign})), ", ".join(h.full_name for h in foreign)
    raise ClaimError(
        "sharing-namespaces",
        f"the MPS daemon of {device} serves namespace {theirs} (claim {listed}), but this claim is in {namespace}",
        hint=f"clients of one MPS daemon can reach each other; {_what_to_delete(namespace, name)}; "
        "mps.tenants=namespace offers each device to a single namespace from the start, "
        "acrossNamespaces allows sharing between namespaces",
        retry=Retry.LATER,
    )


def _what_to_delete(namespace: str, name: str) -> str:
    """Return what to delete so that a pod gets another device: an allocation lasts as long as a pod uses it."""
    return (
        f"delete the pods that use claim {namespace}/{name}, and the claim itself if no pod template made it: "
        "their replacements are scheduled again"
    )
