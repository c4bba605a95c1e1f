"""Sentences that explain to a reader why a claim fits on a node or does not."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.allocation.allocator import PodAllocator
from dra_driver.allocation.explaining.funnel import Funnel, FunnelStage
from dra_driver.allocation.outcome import Category, NodeOutcome
from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.pools.pools import Pool
from dra_driver.model.wire import ClaimWire


def misfit_text(outcome: NodeOutcome, funnels: Sequence[Funnel], pools: Sequence[Pool]) -> str:
    """Return the sentence for a node on which the claims do not fit."""
    if outcome.category in {Category.CEL_RUNTIME_ERROR, Category.CEL_COMPILE_ERROR}:
        failed = next((loss.device for one in funnels for loss in one.errors if loss.reason == outcome.error), "")
        where = f" on device {failed}" if failed and outcome.category is Category.CEL_RUNTIME_ERROR else ""
        return f"selector error{where}: {outcome.error}; this ends the pod's scheduling on every node"
    if outcome.error is not None and outcome.category is not Category.INVALID_POOL:
        return f"{outcome.error}; this ends the pod's scheduling on every node"
    short = [one for one in funnels if one.is_short and not _has_other_choice(one, funnels)]
    if short:
        return "; ".join(_shortages(short)[:3])
    bad = next((note for note in pool_notes(pools)), "")
    if outcome.category is Category.INVALID_POOL and bad:
        return bad
    if not funnels:
        return "no devices are requested"
    return "each request could be met alone, but not all of them together"


def _has_other_choice(one: Funnel, funnels: Sequence[Funnel]) -> bool:
    """Return whether another alternative of the same request has enough devices."""
    request = one.request.partition("/")[0]
    return any(o.claim == one.claim and o.request.partition("/")[0] == request and not o.is_short for o in funnels)


def _shortages(short: Sequence[Funnel]) -> list[str]:
    """Return what requests lack; those that lack the same thing share a sentence."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in short:
        wanted = "all matching devices" if one.wants is None else f"{one.wants}"
        alike.setdefault((wanted, _shortage(one)), []).append(one.request)
    return [
        f"request {names[0]} wants {wanted}, {what}"
        if len(names) == 1
        else f"requests {', '.join(names)} want {wanted} each, {what}"
        for (wanted, what), names in alike.items()
    ]


def _shortage(one: Funnel) -> str:
    stage = one.bottleneck
    if not one.devices:
        return "but no device is published here"
    head = f"{one.fits} of {one.devices} device{'' if one.devices == 1 else 's'} can be had"
    if stage is None:
        return head
    late = [other for other in one.stages if other.lost and other.left < stage.left]
    worst = max(late, key=lambda other: len(other.lost), default=None)
    then = f"; of the {stage.left} left, {_loss(worst)}" if worst else ""
    return f"{head}: {_loss(stage)}{then}"


def _loss(stage: FunnelStage) -> str:
    """Return why a stage lost devices: the common reason, or the first reason and the number of the others."""
    reasons = list(dict.fromkeys(loss.reason for loss in stage.lost))
    if stage.name == "in use":
        holders = sorted({loss.reason.removeprefix("held by ") for loss in stage.lost})
        named = ", ".join(holders[:4]) + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
        verb = "matching device is" if len(stage.lost) == 1 else "matching devices are"
        return f"{len(stage.lost)} {verb} held by {named}"
    if len(reasons) == 1:
        count = len(stage.lost)
        return f"{stage.name}: {reasons[0]} ({count} device{'' if count == 1 else 's'})"
    first = stage.lost[0]
    return f"{stage.name}: {first.device}: {first.reason} (and {len(stage.lost) - 1} more)"


def held_text(allocated: Sequence[ClaimWire]) -> str:
    """Return the devices that a pod's claims hold already."""
    held = [
        f"{one['device']}, which claim {claim_name(claim)} holds already"
        for claim in allocated
        for one in claim["status"]["allocation"].get("devices", {}).get("results", ())
    ]
    return "; ".join(held)


def choice_text(outcome: NodeOutcome, shared: str = "") -> str:
    """Return which devices the requests get."""
    names = [
        f"{one['device']} for {one['request']}"
        for result in outcome.results or []
        for one in result["devices"].get("results", ())
    ]
    given = [*([", ".join(names)] if names else []), *([shared] if shared else [])]
    return "; ".join(given) if given else "no devices are requested"


def pool_notes(pools: Sequence[Pool]) -> tuple[str, ...]:
    """Return what keeps whole pools from being used."""
    notes = []
    for pool in pools:
        if pool.incomplete:
            notes.append(f"pool {pool.name} is incomplete: {pool.seen[0]} of {pool.seen[1]} slices")
        elif pool.invalid:
            notes.append(f"pool {pool.name} is invalid: {pool.invalid}")
    return tuple(notes)


def group_notes(asked: PodAllocator, pools: Sequence[Pool]) -> tuple[str, ...]:
    """Return notes about compatibility groups, if they influenced the outcome."""
    if asked.context.has_groups and any(one.has_groups for pool in pools for one in pool.slices):
        return ("devices that draw from one counter set need a compatibility group in common",)
    hidden = asked.allocator.index.hidden
    ignored = "its slices with compatibilityGroups are ignored while DRADeviceCompatibilityGroups is off"
    return tuple(f"pool {pool.name}: {ignored}" for pool in pools if pool.id in hidden)
