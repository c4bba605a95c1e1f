"""Verdicts of a node: what follows from the results of all its devices together.

Pure. A device that failed its test is withheld, unless all GPUs of the node failed and there are several: then the
node, its driver or its library is the cause, and the result of a single GPU means nothing. As long as some devices are
still to be tested, a device that failed is treated like one that was not tested yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dra_driver.health.fault import Subject
from dra_driver.validation.records import ValidationRecord

GPUS_LEAST = 2


@dataclass(frozen=True, slots=True)
class NodeVerdicts:
    """The verdicts. `withheld`: devices not tested yet; `failed`: failed devices with the reasons.

    `is_node_at_fault`: all GPUs of the node failed.
    """

    withheld: frozenset[Subject] = frozenset()
    failed: Mapping[Subject, str] = field(default_factory=dict)
    is_node_at_fault: bool = False

    def after(self, before: NodeVerdicts, known: Collection[Subject]) -> NodeVerdicts:
        """Return these verdicts, in which the devices that were held back before are still held back."""
        kept = before.withheld.intersection(known)
        failed = {subject: reason for subject, reason in self.failed.items() if subject not in kept}
        return replace(self, withheld=self.withheld | kept, failed=failed)


def verdicts_of_node(known: Mapping[Subject, ValidationRecord | None], pending: Collection[Subject]) -> NodeVerdicts:
    """Return what follows from the records of all devices of a node; `pending` are those that will be tested."""
    waiting = frozenset(pending)
    failed = {subject: one.reason for subject, one in known.items() if one is not None and one.has_failed}
    gpus = {subject.gpu for subject in known}
    good = {subject.gpu for subject in known if subject not in failed and subject not in waiting}
    if failed and not good and len(gpus) >= GPUS_LEAST:
        if waiting:
            return NodeVerdicts(waiting | failed.keys())
        return NodeVerdicts(is_node_at_fault=True)
    return NodeVerdicts(waiting, failed)
