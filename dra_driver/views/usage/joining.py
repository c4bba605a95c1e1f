"""Join the series about claims into one value for each claim.

In: samples, each of one quantity. Out: claims. A quantity that a claim lacks stays unknown: a claim whose use was not
measured does not count as idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.views.usage.samples import Sample
from dra_driver.views.usage.usage_counts import ClaimUsage, NamespaceUsage

_KEY = ("dra_claim_uid", "dra_claim_namespace", "dra_claim_name", "device_class", "model", "profile", "dra_pool_name")
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class ClaimSeries:
    """The samples about claims; `hours` has those of `allocated`, `busy` and `measured`."""

    hours: Mapping[str, Sequence[Sample]]
    devices: Sequence[Sample] = ()  # the number of devices
    pods: Sequence[Sample] = ()
    memory: Sequence[Sample] = ()
    activity: Sequence[Sample] = field(default=())  # buckets of a histogram, cumulative


def claims_of(series: ClaimSeries) -> tuple[ClaimUsage, ...]:
    """Return the claims, in the order of their names."""
    hours: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for quantity, rows in series.hours.items():
        for one in rows:
            key = tuple(one.labels.get(name, "") for name in _KEY)
            hours[key][quantity] = hours[key].get(quantity, 0.0) + max(0.0, one.value)
    pods, activity = _pods(series.pods), _p95(series.activity)
    devices = {_uid(one): max(1, round(one.value)) for one in series.devices}
    memory = {_uid(one): one.value for one in series.memory if one.value > 0}
    return tuple(
        ClaimUsage(
            namespace, name, uid, device_class, model, profile, pool,
            allocated_s=found.get("allocated", 0.0),
            busy_s=min(found.get("busy", 0.0), found.get("measured", 0.0)),
            measured_s=found.get("measured", 0.0),
            pods=pods.get(uid, ()),
            devices=devices.get(uid, 1),
            memory_max_bytes=memory.get(uid),
            sm_p95=activity.get(uid),
        )
        for (uid, namespace, name, device_class, model, profile, pool), found in sorted(hours.items(), key=_by_name)
        if found.get("allocated", 0.0) > 0
    )  # fmt: skip


def totals_of(hours: Mapping[str, Sequence[Sample]]) -> tuple[NamespaceUsage, ...]:
    """Return the totals by namespace, class, model and profile, in the order of their names."""
    rows: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    for quantity, samples in hours.items():
        for one in samples:
            label = one.labels.get
            key = (namespace_of(one), label("device_class", ""), label("model", ""), label("profile", ""))
            rows[key][quantity] = rows[key].get(quantity, 0.0) + max(0.0, one.value)
    return tuple(
        NamespaceUsage(*key, found.get("allocated", 0.0), found.get("busy", 0.0), found.get("measured", 0.0))
        for key, found in sorted(rows.items())
        if any(found.values())
    )


def namespace_of(sample: Sample) -> str:
    """Return the namespace of the claims; without `honorLabels`, Prometheus renames this label."""
    return sample.labels.get("exported_namespace") or sample.labels.get("namespace", "")


def _by_name(item: tuple[tuple[str, ...], Mapping[str, float]]) -> tuple[str, ...]:
    uid, *rest = item[0]
    return (*rest, uid)


def _pods(rows: Sequence[Sample]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = defaultdict(set)
    for one in rows:
        if name := one.labels.get("exported_pod") or one.labels.get("pod"):
            found[_uid(one)].add(name)
    return {uid: tuple(sorted(names)) for uid, names in found.items()}


def _p95(rows: Sequence[Sample]) -> dict[str, float]:
    """Return the upper bound of the bucket with the 95th percentile, so that the advised size is never too small."""
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    for one in rows:
        try:
            bound = float(one.labels.get("le", ""))
        except ValueError:
            continue
        buckets[_uid(one)][bound] = buckets[_uid(one)].get(bound, 0.0) + one.value
    found = {}
    for uid, counts in buckets.items():
        most = max(counts.values())
        if most > 0:
            bounds = [bound for bound, count in counts.items() if count >= _QUANTILE * most]
            found[uid] = min(1.0, *bounds)
    return found


def _uid(sample: Sample) -> str:
    return sample.labels.get("dra_claim_uid", "")
