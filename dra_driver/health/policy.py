"""Health policy: what each fault means for the scheduler.

Pure. In: faults. Out: a verdict for each fault that counts. If the driver reports that a fault needs no action, the
verdict only informs. If more than half of a node's GPUs, and at least two, would lose their pods at the same time, none
does: a mistake of the driver or of a library must not end every job on a node. The limit on evictions in a cluster is
in `eviction_budget`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dra_driver.health.fault import Fault, FaultKey
from dra_driver.model.taints import TaintEffect

NONE, NO_SCHEDULE, NO_EXECUTE = TaintEffect.NONE, TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE
EVICTED_LEAST = 2


@dataclass(frozen=True, slots=True)
class HealthRule:
    """What a fault of one key means. Times are in seconds.

    After `escalates_after`, the effect NONE becomes NO_SCHEDULE. A fault that was not seen for `time_to_live` no
    longer counts. An ignored fault is still recorded, and counted in metrics.
    """

    effect: TaintEffect
    escalates_after: float | None = None
    time_to_live: float | None = None
    is_ignored: bool = False


_INFORMING = (FaultKey.ROW_REMAP_PENDING, FaultKey.THROTTLED, FaultKey.PCIE, FaultKey.UNMONITORED)
DEFAULT_RULES: Mapping[FaultKey, HealthRule] = {
    **{key: HealthRule(NO_SCHEDULE) for key in FaultKey},
    **{key: HealthRule(NONE) for key in _INFORMING},
    FaultKey.THERMAL: HealthRule(NONE, escalates_after=300.0),
}


class HeldBackReason(enum.StrEnum):
    """Why NO_EXECUTE became NO_SCHEDULE."""

    NODE = "node"  # too many GPUs of the node would lose their pods
    BUDGET = "budget"  # too many GPUs of the cluster have lost their pods lately


@dataclass(frozen=True, slots=True)
class FaultVerdict:
    """A fault that counts, with its effect.

    `since` (seconds since 1970) stays the same as long as the fault lasts.
    """

    fault: Fault
    effect: TaintEffect
    since: float
    held_back: HeldBackReason | None = None


@dataclass(frozen=True, slots=True)
class EvictionLimit:
    """The limit on GPUs and partitions of the cluster that may get NO_EXECUTE within `period_s` seconds."""

    devices: int = 5
    period_s: int = 600


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The rules of a node. `ignored_xids` are codes that raise no fault, whatever the table of Xids says."""

    rules: Mapping[FaultKey, HealthRule] = field(default_factory=lambda: DEFAULT_RULES)
    ignored_xids: frozenset[int] = frozenset()
    evictions: EvictionLimit = EvictionLimit()

    def verdicts(self, faults: Iterable[Fault], gpus: int, now: float) -> tuple[FaultVerdict, ...]:
        """Return a verdict for each fault that counts, on a node that has this number of GPUs."""
        verdicts = tuple(verdict for fault in faults if (verdict := self._verdict(fault, now)) is not None)
        evicted = {verdict.fault.subject.gpu for verdict in verdicts if verdict.effect is NO_EXECUTE}
        if len(evicted) < EVICTED_LEAST or 2 * len(evicted) <= gpus:
            return verdicts
        return tuple(
            replace(one, effect=NO_SCHEDULE, held_back=HeldBackReason.NODE) if one.effect is NO_EXECUTE else one
            for one in verdicts
        )

    @property
    def evicts(self) -> bool:
        """Return whether any fault may delete pods."""
        return any(rule.effect is NO_EXECUTE and not rule.is_ignored for rule in self.rules.values())

    def _verdict(self, fault: Fault, now: float) -> FaultVerdict | None:
        rule = self.rules[fault.key]
        if rule.is_ignored or (rule.time_to_live is not None and now - fault.last_seen > rule.time_to_live):
            return None
        effect = NONE if fault.is_mild else rule.effect
        if effect is NONE and rule.escalates_after is not None and now - fault.since >= rule.escalates_after:
            effect = NO_SCHEDULE
        return FaultVerdict(fault, effect, fault.since)
