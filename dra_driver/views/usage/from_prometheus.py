"""Read what was counted over a period from a Prometheus.

In: its address and a period. Out: `UsageCounts`. The counters of a claim are read at both ends of the period, so that
its time is exact to the second although its series ends with the claim; totals, which never end, are read by their
increase. Queries have a time limit, and answers a limit of size. Labels are also found under the names that Prometheus
gives them without `honorLabels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.kubeconfig import Credentials
from dra_driver.kube.credentials.tls import TlsMaterial
from dra_driver.kube.credentials.tokens import StaticToken, TokenFile
from dra_driver.model.errors import ApiError, UsageError
from dra_driver.model.wire import Wire
from dra_driver.views.usage.joining import ClaimSeries, claims_of, namespace_of, totals_of
from dra_driver.views.usage.samples import Sample, samples_of_answer
from dra_driver.views.usage.usage_counts import NamespaceUsage, UnclaimedTime, UsageCounts

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
