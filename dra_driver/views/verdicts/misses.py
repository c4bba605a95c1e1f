"""The nearest misses of a query: devices that only one clause rejects.

In: an evaluated query. Out: sentences, the miss with the most devices first. A device is a near miss only if every
other selector of the query accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.model.wire import Wire
from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.near_misses import nearest_misses
from dra_driver.views.verdicts.query_verdicts import MATCH, QueryVerdicts, VerdictGroup

_MAX = 3


@dataclass(frozen=True, slots=True)
class Miss:
    """Devices that fail only one clause. `reason` is short: "memory: 79Gi < 80Gi"."""

    label: str
    clause: str
    reason: str
    devices: int
    of: int

    @property
    def sentence(self) -> str:
        """Return the miss as a sentence."""
        verb = "matches" if self.of == 1 else "match"
        return f"{self.devices} of {self.of} device{'' if self.of == 1 else 's'} {verb} but for {self.reason}"


def misses(judged: QueryVerdicts) -> list[Miss]:
    """Find the nearest misses."""
    selectors = [one.selector for one in judged.compiled if isinstance(one.selector, KubernetesSelector)]
    total = sum(judged.size(group) for group in judged.groups)
    outside = [group for group in judged.groups if group.verdict.kind != MATCH]
    found: list[Miss] = []
    for step, selector in enumerate(selectors):
        others = selectors[:step] + selectors[step + 1 :]
        near = [group for group in outside if all(_holds(other, group) for other in others)]
        for miss in nearest_misses(selector, [group.view for group in near]):
            count = sum(judged.size(near[position]) for position in miss.devices)
            found.append(Miss(judged.compiled[step].written.label, miss.clause, miss.reason, count, total))
    return sorted(found, key=lambda miss: -miss.devices)[:_MAX]


def miss_document(miss: Miss) -> Wire:
    """Return the document of a near miss."""
    return {
        "sentence": miss.sentence,
        "selector": miss.label,
        "clause": miss.clause,
        "reason": miss.reason,
        "devices": miss.devices,
    }


def _holds(selector: KubernetesSelector, group: VerdictGroup) -> bool:
    try:
        return selector.matches_view(group.view)
    except SelectorRuntimeError:
        return False
