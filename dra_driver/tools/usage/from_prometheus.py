"""Read what was counted over a period from a Prometheus.

In: its address and a period. Out: `UsageCounts`. The counters of a claim are read at both ends of the period, so that
its time is exact to the second although its series ends with the claim; totals, which never end, are read by their
increase. Queries have a time limit, and answers a limit of size. Labels are also found under the names that Prometheus
gives them without `honorLabels`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from dra_driver.base.errors import ApiError, UsageError
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial, TokenFile
from dra_driver.tools.usage.usage_counts import ClaimUsage, NamespaceUsage, UnclaimedTime, UsageCounts

# Samples from the answers of a Prometheus and from the pages of agents, both of which are hostile until checked.

MAX_SAMPLES = 200_000
MAX_LABELS = 64
LONGEST_LABEL = 1024
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_of_answer(answer: Wire, where: str) -> list[Sample]:
    """Return the samples of the answer to an instant query. NaN is left out. Raises: ApiError."""
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict) or data.get("resultType") != "vector":
        reason = str(answer.get("error") or "")[:300]
        raise _bad(where, f"it is not the answer to a query {reason}".rstrip())
    result = data.get("result")
    if not isinstance(result, list):
        raise _bad(where, "its result is not a list")
    if len(result) > MAX_SAMPLES:
        raise _bad(where, f"it has {len(result)} series; at most {MAX_SAMPLES} are allowed; use -n for one namespace")
    found = (_of_row(row, where) for row in result)
    return [one for one in found if math.isfinite(one.value)]


def _of_row(row: Any, where: str) -> Sample:
    metric, value = (row.get("metric"), row.get("value")) if isinstance(row, dict) else (None, None)
    if not isinstance(metric, dict) or not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise _bad(where, "one of its series has no labels or no value")
    if len(metric) > MAX_LABELS or not all(_is_label(text) for pair in metric.items() for text in pair):
        raise _bad(where, "one of its series has too many labels, or labels that are too long or not texts")
    try:
        number = float(value[1])
    except ValueError as error:
        raise _bad(where, f"{value[1][:40]!r} is not a number") from error
    return Sample(
        metric.get("__name__", ""), {name: text for name, text in metric.items() if name != "__name__"}, number
    )


def samples_of_page(text: str, prefix: str, where: str) -> Iterator[Sample]:
    """Yield the samples of a page whose names begin with a prefix. Raises: ApiError for a line that is not a sample."""
    count = 0
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        count += 1
        matched = _SAMPLE.fullmatch(line)
        labels = _labels(matched[2] or "") if matched else None
        if matched is None or labels is None or count > MAX_SAMPLES:
            raise _bad(where, f"{line[:80]!r} is not a sample, or there are more than {MAX_SAMPLES} samples")
        try:
            value = float(matched[3])
        except ValueError as error:
            raise _bad(where, f"the value of {line[:80]!r} is not a number") from error
        if math.isfinite(value):
            yield Sample(matched[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    """Return labels by name; None if the text is not a list of labels."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        matched = _LABEL.match(text, at)
        if matched is None or matched[1] in found or len(matched[2]) > LONGEST_LABEL or len(found) >= MAX_LABELS:
            return None
        found[matched[1]] = _unescaped(matched[2]) if "\\" in matched[2] else matched[2]
        at = matched.end()
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), text)


def _is_label(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_LABEL


def _bad(where: str, why: str) -> ApiError:
    return ApiError("metrics", f"{where}: the answer can't be used: {why}")


# Join the series about claims into one value for each claim.

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


QUERY_SECONDS = 60.0
RANGE_SECONDS = 10.0
_CLAIM = "dra_claim_uid, dra_claim_namespace, dra_claim_name, device_class, model, profile, dra_pool_name"
_KIND = "namespace, exported_namespace, device_class, model, profile"


@dataclass(frozen=True, slots=True)
class PrometheusAddress:
    """The address of a Prometheus. Without `ca_file`, the system's authorities are trusted."""

    url: str
    token_file: str = ""
    ca_file: str = ""

    def connect(self) -> KubeApi:
        """Return a client. Raises: UsageError("usage.prometheus")."""
        try:
            parts = urlsplit(self.url)
            has_port = parts.port is None or parts.port > 0
        except ValueError:
            parts, has_port = urlsplit(""), False
        if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port or parts.query or parts.username:
            raise UsageError(
                "prometheus",
                f"--prometheus={self.url[:200]!r} is not a URL",
                hint="for example https://prometheus:9090",
            )
        tokens = TokenFile(self.token_file) if self.token_file else StaticToken()
        tls = TlsMaterial(ca_file=self.ca_file) if parts.scheme == "https" else None
        return KubeApi(Credentials(self.url.rstrip("/"), tokens, tls))


class PrometheusQueries:
    """Queries about one period, and one namespace if `namespace` is not ""."""

    def __init__(self, api: KubeApi, name: str, begin: datetime, end: datetime, namespace: str = "") -> None:
        self._api, self._name, self._begin, self._end = api, name, begin, end
        self._claims = _matcher(dra_claim_namespace=namespace)
        self._namespace = namespace
        self._window = f"[{max(1, round((end - begin).total_seconds()))}s]"

    def at_end(
        self, function: str, by: str, outer: str = "sum", name: str = "", where: str | None = None
    ) -> list[Sample]:
        """Return a function of a metric over the whole period, aggregated by labels. Raises: ApiError."""
        selector = self._claims if where is None else where
        return self._ask(f"{outer} by ({by}) ({function}({name}{selector}{self._window}))", self._end)

    def at_begin(self, by: str, name: str, outer: str = "sum") -> list[Sample]:
        """Return a metric at the beginning of the period, aggregated by labels. Raises: ApiError."""
        return self._ask(f"{outer} by ({by}) ({name}{self._claims})", self._begin)

    def devices(self) -> list[Sample]:
        """Return how many devices each claim had. Raises: ApiError."""
        inner = "count by (dra_claim_uid, dra_pool_name, dra_device_name, dra_share_id)"
        devices = f"{inner} (max_over_time(dra_claim_device_info{self._claims}{self._window}))"
        return self._ask(f"count by (dra_claim_uid) ({devices})", self._end)

    def of_namespace(self, rows: Sequence[Sample]) -> list[Sample]:
        """Return the samples of the namespace, or all samples if there is none."""
        return [row for row in rows if not self._namespace or namespace_of(row) == self._namespace]

    def _ask(self, query: str, at: datetime) -> list[Sample]:
        asked = {"query": query, "time": f"{at.timestamp():.3f}"}
        try:
            answer = self._api.request("GET", "/api/v1/query", query=asked, timeout_s=QUERY_SECONDS)
        except ApiError as error:
            raise ApiError(
                "prometheus",
                f"{self._name} did not answer a query: {error.message[:300]}",
                status=error.status,
                hint="check --prometheus, --token-file and --ca-file; a shorter --since asks for less",
            ) from error
        return samples_of_answer(answer, self._name)


def ask_samples(api: KubeApi, query: str, at: datetime) -> list[Sample]:
    """Return the samples of a query at one moment. Raises: ApiError."""
    asked = {"query": query, "time": f"{at.timestamp():.3f}"}
    return samples_of_answer(api.request("GET", "/api/v1/query", query=asked, timeout_s=RANGE_SECONDS), "Prometheus")


def ask_range(api: KubeApi, query: str, begin: datetime, end: datetime, step_s: int) -> Wire:
    """Return the unchecked answer to a range query. Raises: ApiError."""
    asked = {"query": query, "step": str(step_s), "start": f"{begin.timestamp():.0f}", "end": f"{end.timestamp():.0f}"}
    return api.request("GET", "/api/v1/query_range", query=asked, timeout_s=RANGE_SECONDS)


def read_prometheus(address: PrometheusAddress, begin: datetime, end: datetime, namespace: str = "") -> UsageCounts:
    """Return what was counted from `begin` to `end`. Raises: ApiError, UsageError."""
    api, name = address.connect(), urlsplit(address.url).hostname or address.url
    try:
        asked = PrometheusQueries(api, name, begin, end, namespace)
        parts = asked.at_end("max_over_time", "model, profile", "max", "dra_gpu_part", "")
        return UsageCounts(
            source=f"Prometheus {name}",
            begin=begin,
            end=end,
            claims=claims_of(_claim_series(asked)),
            totals=_totals(asked),
            unclaimed=() if namespace else _unclaimed(asked),
            parts={(one.labels.get("model", ""), one.labels.get("profile", "")): one.value for one in parts},
        )
    finally:
        api.close()


def _claim_series(asked: PrometheusQueries) -> ClaimSeries:
    hours = {
        name: _increases(asked, f"dra_claim_{name}_seconds_total", keeps_count=name == "allocated")
        for name in ("allocated", "busy", "measured")
    }
    return ClaimSeries(
        hours=hours,
        devices=asked.devices(),
        pods=asked.at_end("max_over_time", "dra_claim_uid, pod, exported_pod", "group", "dra_claim_device_info"),
        memory=asked.at_end("max_over_time", "dra_claim_uid", "max", "dra_claim_memory_used_max_bytes"),
        activity=asked.at_end("increase", "dra_claim_uid, le", "sum", "dra_claim_sm_active_bucket"),
    )


def _increases(asked: PrometheusQueries, metric: str, *, keeps_count: bool) -> list[Sample]:
    """Return the increase of a counter for each claim.

    With `keeps_count`, the counter continues after a restart of the agent, so only the larger of the series before and
    after it counts. Other counters start again at 0: their series are added up, and for a series that was reset the
    increase counts.
    """
    outer = "max" if keeps_count else "sum"
    ends = asked.at_end("max_over_time", _CLAIM, outer, metric)
    begins = {_key(one): one.value for one in asked.at_begin(_CLAIM, metric, outer)}
    again: Mapping[tuple[tuple[str, str], ...], float] = {}
    fell = {_key(one) for one in asked.at_end("resets", _CLAIM, "max", metric) if one.value > 0}
    if fell and not keeps_count:
        again = {_key(one): one.value for one in asked.at_end("increase", _CLAIM, "sum", metric)}
    return [
        Sample(metric, one.labels, again[key] if (key := _key(one)) in fell & again.keys() else _grown(one, begins))
        for one in ends
    ]


def _grown(end: Sample, begins: Mapping[tuple[tuple[str, str], ...], float]) -> float:
    return max(0.0, end.value - begins.get(_key(end), 0.0))


def _totals(asked: PrometheusQueries) -> tuple[NamespaceUsage, ...]:
    hours = {
        name: asked.of_namespace(asked.at_end("increase", _KIND, "sum", f"dra_{name}_seconds_total", ""))
        for name in ("allocated", "busy", "measured")
    }
    return totals_of(hours)


def _unclaimed(asked: PrometheusQueries) -> tuple[UnclaimedTime, ...]:
    rows = asked.at_end("increase", "dra_pool_name, model", "sum", "dra_unclaimed_seconds_total", "")
    found = (UnclaimedTime(one.labels.get("dra_pool_name", ""), one.labels.get("model", ""), one.value) for one in rows)
    return tuple(sorted((one for one in found if one.seconds > 0), key=lambda one: (one.pool, one.model)))


def _key(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(sample.labels.items()))


def _matcher(**labels: str) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)
    text = ",".join(pairs)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
