"""A week whose hours and money can be worked out by hand, as series that grow at constant rates.

From Monday 06:00 to Monday 06:00 (168 hours):

- 16 nodes with 8 A100 each. Claims train/job-0 to -15 have all 128 GPUs until Friday 18:00 (108 hours) and are busy for
  three quarters of it. Then nobody has them for 60 hours.
- h100-0: web/idle has four H100 for 13 hours and does nothing; lab/small has one for 48 hours and uses a little of it;
  lab/short has one for 10 hours. Three quarters of a GPU are free of the share lab/share has for 100 hours.
- mig-0: web/part has a partition 3g.40gb for the whole week, busy for half of it.
- Namespace ci had 1,440 claims of five seconds, which no scrape has seen: two hours in the totals alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
BEGIN = datetime(2026, 11, 2, 6, tzinfo=UTC)
END = datetime(2026, 11, 9, 6, tzinfo=UTC)
WEEK_H, WORK_H = 168, 108
GIB = 1 << 30
PRICES = f"""version: prices/v1
currency: USD
prices:
  - {{model: {A100}, perHour: "3.06"}}
  - {{model: "NVIDIA H100*", perHour: "4"}}
"""


@dataclass(frozen=True)
class Line:
    """One series: from `first` to `last` (hours since the beginning), growing from `value` by `rate` a second."""

    name: str
    labels: dict[str, str]
    value: float = 0.0
    rate: float = 0.0
    first: float = 0.0
    last: float = WEEK_H

    def at(self, hour: float) -> float | None:
        """Return the value at a moment; None if the series does not exist then."""
        if not self.first <= hour <= self.last:
            return None
        return self.value + self.rate * (hour - self.first) * 3600


def week() -> Iterator[Line]:
    """Yield every series."""
    for node in range(16):
        pool = f"a100-{node:02}/gpu.nvidia.com"
        yield from _claim("train", f"job-{node}", A100, "gpu", pool, devices=8, last=WORK_H, busy=0.75)
        yield Line("dra_unclaimed_seconds_total", {"dra_pool_name": pool, "model": A100}, last=WORK_H)
        yield Line("dra_unclaimed_seconds_total", {"dra_pool_name": pool, "model": A100}, rate=8, first=WORK_H + 1e-9)
    pool = "h100-0/gpu.nvidia.com"
    yield from _claim("web", "idle", H100, "gpu", pool, devices=4, last=13, busy=0.0)
    yield from _claim("lab", "small", H100, "gpu", pool, last=48, busy=0.3, memory=5 * GIB, sm=0.1)
    yield from _claim("lab", "short", H100, "gpu", pool, last=10, busy=0.3, memory=5 * GIB, sm=0.1)
    yield from _claim("lab", "share", H100, "gpu-share", pool, last=100, busy=0.5, weight=0.25)
    part = "mig-0/gpu.nvidia.com"
    yield from _claim("web", "part", H100, "3g.40gb", part, last=WEEK_H, busy=0.5, memory=30 * GIB, sm=0.9)
    ci = {"namespace": "ci", "device_class": "gpu.nvidia.com", "model": H100, "profile": "gpu", "node": "h100-0"}
    yield Line("dra_allocated_seconds_total", ci, rate=7200 / WEEK_H / 3600)
    for model, profile, value in (
        (A100, "gpu", 1.0),
        (H100, "gpu", 1.0),
        (H100, "gpu-share", 1.0),
        (H100, "3g.40gb", 0.5),
    ):
        yield Line("dra_gpu_part", {"model": model, "profile": profile, "node": "h100-0"}, value)


def _claim(
    namespace: str, name: str, model: str, profile: str, pool: str, *, last: float, busy: float, devices: int = 1,
    weight: float = 1.0, memory: float = 20 * GIB, sm: float = 1.0,
) -> Iterator[Line]:  # fmt: skip
    node = pool.partition("/")[0]
    claim = {"dra_claim_name": name, "dra_claim_namespace": namespace, "dra_claim_uid": f"uid-{name}"}
    claim |= {"namespace": namespace, "pod": f"{name}-pod", "node": node}
    kind = {"device_class": "gpu.nvidia.com", "model": model, "profile": profile}
    total = {"namespace": namespace, "node": node, **kind}
    whole = devices * weight
    for quantity, rate in (("allocated", whole), ("measured", whole), ("busy", whole * busy)):
        yield Line(f"dra_claim_{quantity}_seconds_total", claim | kind | {"dra_pool_name": pool}, rate=rate, last=last)
        end = f"dra_{quantity}_seconds_total"
        yield Line(end, total | {"x": name}, rate=rate, last=last)
        if last < WEEK_H:
            yield Line(end, total | {"x": name}, rate * last * 3600, first=last + 1e-9)
    yield Line("dra_claim_memory_used_max_bytes", claim, memory, last=last)
    for bound in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        yield Line("dra_claim_sm_active_bucket", claim | {"le": le}, rate=0.1 if bound >= sm else 0.0, last=last)
    for device in range(devices):
        device_name = {"dra_device_name": f"gpu-{device}", "dra_pool_name": pool}
        yield Line("dra_claim_device_info", claim | device_name | {"container": "main"}, 1.0, last=last)
        yield Line("dra_claim_device_info", claim | device_name | {"container": "sidecar"}, 1.0, last=last)
