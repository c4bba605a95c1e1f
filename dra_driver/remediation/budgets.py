"""Budgets: whether another action may be tried, given the actions of the last seven days.

Pure. In: the actions of the journal. Out: a sentence about the budget that is used up, or "".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.remediation.case import RemediationCase
from dra_driver.remediation.policy import RemediationPolicy

WEEK_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class ActionRow:
    """One action that was begun: when (boot time; below 0 in an earlier boot), on which GPU, which, how it ended."""

    at: float
    uuid: str
    action: str
    outcome: str = ""


def spent(case: RemediationCase, rows: Iterable[ActionRow], policy: RemediationPolicy, now: float) -> str:
    """Return a sentence about the budget that forbids another action for this case; "" if none does."""
    if case.tries >= policy.tries:
        times = "once" if case.tries == 1 else f"{case.tries} times"
        return f"{case.key} was remediated {times} and is still there"
    recent = [one for one in rows if now - one.at < WEEK_SECONDS]
    mine = sum(one.uuid == case.uuid for one in recent)
    if mine >= policy.weekly_gpu:
        return f"the GPU was remediated {mine} times within seven days, and {policy.weekly_gpu} are allowed"
    if len(recent) >= policy.weekly_node:
        return f"{len(recent)} treatments on this node within seven days, and {policy.weekly_node} are allowed"
    return ""
