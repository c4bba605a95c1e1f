"""The closed set of the agent's metrics, in their own registry.

Most values are read from their owner at the moment of a scrape; only what could not be read later (durations, outcomes)
is counted as it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX = "dra_driver"
_HEAD = b"\n# HELP "
# In seconds. Preparing a whole GPU takes 1 to 3 ms; the kubelet gives up after 45 s.
BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1.0, 5.0, 15.0, 45.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values that are read at a scrape. Mappings are from label values to numbers."""

    version: str = ""
    vendor: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)  # by type
    problems: Mapping[str, int] = field(default_factory=dict)  # by code
    slice_writes: Mapping[str, int] = field(default_factory=dict)  # by verb
    prepared_claims: int = 0
    is_registered: bool = False
    holds_role: bool = False
    scans: int = 0
    scan_seconds: float = 0.0
    pool_generation: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)  # by key
    validations: Mapping[str, int] = field(default_factory=dict)  # devices by the verdict of their last test
    held_back: Mapping[str, int] = field(default_factory=dict)  # by reason: node, budget
    remediations: Mapping[str, int] = field(default_factory=dict)  # by stage
    remediation_actions: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by action and outcome
    xids: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by code and class


class Metrics:
    """The agent's metrics. At each scrape, `snapshot` is called for values and `more` for finished text."""

    def __init__(self, snapshot: Callable[[], Snapshot], *, more: Callable[[], bytes] = bytes) -> None:
        self._more = more
        self._registry = CollectorRegistry()
        self._claims = Counter(
            "claims",
            "Claims answered to the kubelet, by rpc and outcome (ok or an error code).",
            ("rpc", "code"),
            namespace=PREFIX,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "claim_seconds",
            "Time in seconds to answer one claim of a call.",
            ("rpc",),
            namespace=PREFIX,
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._registry.register(_SnapshotCollector(snapshot))
        self._of_answers: dict[tuple[str, str], tuple[Counter, Histogram]] = {}  # the metrics by rpc and code

    def claim_answered(self, rpc: str, seconds: float, code: str) -> None:
        """Count one claim of a Prepare or Unprepare call; `code` is "ok" or the error's code."""
        found = self._of_answers.get((rpc, code))
        if found is None:
            found = self._of_answers[rpc, code] = self._claims.labels(rpc, code), self._seconds.labels(rpc)
        claims, durations = found
        claims.inc()
        durations.observe(seconds)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry) + self._more()

    def families(self) -> Iterable[Metric]:
        """Return the families of metrics, without the finished text."""
        return self._registry.collect()

    def text(self) -> bytes:
        """Return the finished text."""
        return self._more()


def render_joined(metrics: Mapping[str, Metrics]) -> bytes:
    """Return the metrics of several drivers, by name, as one text; a label `driver` tells them apart."""
    registry = CollectorRegistry()
    registry.register(_JoinedCollector(metrics))
    return generate_latest(registry) + join_families(one.text() for one in metrics.values())


class _JoinedCollector:
    """A collector that joins the families of several drivers, because a family may occur only once in a text."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because registering must not take a snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, with the samples of all drivers."""
        joined: dict[str, Metric] = {}
        for driver, one in self._metrics.items():
            for family in one.families():
                into = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                into.samples += [
                    sample._replace(labels={**sample.labels, "driver": driver}) for sample in family.samples
                ]
        yield from joined.values()


class _SnapshotCollector:
    """A collector that turns a snapshot into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because registering must not take a snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every family that is read at scrape time."""
        now = self._snapshot()
        yield from _by_one_label(now)
        yield from _by_two_labels(now)
        for name, meaning, value in (
            ("prepared_claims", "Claims in the ledger.", now.prepared_claims),
            ("registered", "1 while the kubelet has accepted the registration.", int(now.is_registered)),
            (
                "role_held",
                "1 in the instance that publishes slices and removes leftovers on this node.",
                int(now.holds_role),
            ),
            ("pool_generation", "Generation of the pool as published.", now.pool_generation),
            ("last_scan_seconds", "Duration of the last full scan of the hardware.", now.scan_seconds),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", meaning, value=value)
        yield CounterMetricFamily(f"{PREFIX}_scans", "Full scans of the hardware.", value=now.scans)


def _labelled(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    meaning: str,
    label: str,
    values: Mapping[str, int],
) -> Metric:
    result = family(f"{PREFIX}_{name}", meaning, labels=(label,))
    for key, value in sorted(values.items()):
        result.add_metric((key,), value)
    return result


def _by_one_label(now: Snapshot) -> Iterator[Metric]:
    yield _labelled(GaugeMetricFamily, "devices", "Devices of this node that can be published.", "type", now.devices)
    yield _labelled(GaugeMetricFamily, "problems", "What could not be read or published.", "code", now.problems)
    yield _labelled(CounterMetricFamily, "slice_writes", "Writes of ResourceSlices.", "verb", now.slice_writes)
    yield _labelled(GaugeMetricFamily, "faults", "Current faults of GPUs and partitions.", "key", now.faults)
    text = "GPUs and partitions that keep their pods although the policy says NoExecute."
    yield _labelled(GaugeMetricFamily, "evictions_held_back", text, "reason", now.held_back)
    text = "Devices by the verdict of their last test in this boot; served: a claim came first."
    yield _labelled(GaugeMetricFamily, "validations", text, "verdict", now.validations)
    text = "GPUs in remediation by stage; escalated ones wait for a person."
    yield _labelled(GaugeMetricFamily, "remediations", text, "stage", now.remediations)


def _by_two_labels(now: Snapshot) -> Iterator[Metric]:
    actions = GaugeMetricFamily(
        f"{PREFIX}_remediation_actions_recorded",
        "Resets, requests of reboots and commands of the last weeks.",
        labels=("action", "outcome"),
    )
    for labels, count in sorted(now.remediation_actions.items()):
        actions.add_metric(labels, count)
    yield actions
    xids = CounterMetricFamily(f"{PREFIX}_xids", "Xid errors reported since the start.", labels=("code", "class"))
    for labels, count in sorted(now.xids.items()):
        xids.add_metric(labels, count)
    yield xids
    build = GaugeMetricFamily(f"{PREFIX}_build_info", "Version and vendor.", labels=("version", "vendor"))
    build.add_metric((now.version, now.vendor), 1)
    yield build


def join_families(texts: Iterable[bytes]) -> bytes:
    """Return several texts as one in which each family appears once, as the format demands.

    The samples of a family follow its head. The head is
    that of the first text that has the family.
    """
    joined: dict[bytes, list[bytes]] = {}
    for text in texts:
        for block in (b"\n" + text.rstrip(b"\n")).split(_HEAD)[1:]:  # a head begins a line
            pieces = joined.setdefault(block.partition(b" ")[0], [])
            pieces.append(block.split(b"\n", 2)[2] if pieces else _HEAD[1:] + block)
    return b"".join(piece + b"\n" for pieces in joined.values() for piece in pieces)
