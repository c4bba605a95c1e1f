"""The names of the samples of every metric that this driver can publish, which rules and dashboards may query."""

from __future__ import annotations

from dra_driver.base.flags import VENDORS
from dra_driver.base.telemetry.metrics import Metrics, Snapshot
from dra_driver.hardware.metered import FamilyHead, SampleKind
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.metering import billing, claim_tally, series

_PARTS = ("_bucket", "_sum", "_count")


def exported_metrics() -> frozenset[str]:
    of_vendors = [declared() for one in VENDORS if (declared := load_vendor(one.name).metric_names) is not None]
    heads = [name.head for names in of_vendors for name in names.names]
    for module in (billing, claim_tally, series):
        heads += [value for value in vars(module).values() if isinstance(value, FamilyHead)]
    found = set()
    for head in heads:
        parts = _PARTS if head.kind == SampleKind.HISTOGRAM else ("",)
        found |= {head.name + part for part in parts}
    return frozenset(found | _of_the_agent())


def _of_the_agent() -> set[str]:
    one = {"x": 1}
    full = Snapshot(
        devices=one,
        problems=one,
        slice_writes=one,
        faults=one,
        held_back=one,
        remediations=one,
        xids={("1", "reset"): 1},
    )
    metrics = Metrics(lambda: full)
    metrics.claim_answered("prepare", 0.1, "ok")
    lines = metrics.render().decode().splitlines()
    return {line.partition("{")[0].partition(" ")[0] for line in lines if not line.startswith("#")}
