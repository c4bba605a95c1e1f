"""Metric names: the names and labels under which a vendor's quantities are published, those of its own exporter.

A vendor declares one `MetricNames` in its own folder (`Vendor.metric_names`), so that dashboards and rules that were
made for its exporter work unchanged. Labels of claims and pods are added to all of them in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.telemetry.exposition import FamilyHead, SampleKind

Pairs = tuple[tuple[str, str], ...]
WHOLE_MIB = 1 / (1 << 20)  # a scale: bytes as MiB, rounded down
# Not measured in a round, but counted from events: the code of the newest Xid, and counts of the last minutes.
LAST_XID, RECENT_XIDS, RECENT_CLOCK_EVENTS = "lastXid", "recentXids", "recentClockEvents"


@dataclass(frozen=True, slots=True)
class MetricName:
    """One published name, whose value is a quantity times `scale`.

    `quantity` may be one of those above that are counted from events. `labels` tell apart quantities that are published
    under one name; these follow one another in `MetricNames`.
    """

    head: FamilyHead
    quantity: str
    scale: float = 1.0
    is_default: bool = True
    labels: Pairs = ()

    def value(self, measured: float) -> float:
        """Return a quantity in the unit of the name."""
        return float(int(measured * self.scale)) if self.scale == WHOLE_MIB else measured * self.scale


def gauge(name: str, meaning: str, quantity: str, *, scale: float = 1.0, labels: Pairs = ()) -> MetricName:
    """Return the name of a quantity that goes up and down."""
    return MetricName(FamilyHead(name, SampleKind.GAUGE, meaning), quantity, scale, labels=labels)


def _no_instances(_: PartitionFacts) -> Pairs:
    return ()


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one vendor.

    Args:
        names: every name that can be published.
        gpu_labels: returns the labels of a GPU, or of a part of one, from its index on the node and its facts.
        instance_labels: returns those that a partition has beside its GPU's.
        fields: what else can be a label of every series, by its name: a function of the facts and of the version of
            the node's driver.
        default_fields: those that are labels unless a selection is given.
        hostname_label: the label of the node's name; "" for the one that the agent's option sets.
        takes_counters_file: whether the counters file of the agent's option selects from these names.
    """

    names: tuple[MetricName, ...]
    gpu_labels: Callable[[int, GpuFacts], Pairs]
    instance_labels: Callable[[PartitionFacts], Pairs] = _no_instances
    fields: Mapping[str, Callable[[GpuFacts, str], str]] = field(default_factory=dict)
    default_fields: tuple[str, ...] = ()
    hostname_label: str = ""
    takes_counters_file: bool = False
