"""What the console asks a Prometheus: the queries of a dashboard for the last hours, and what GPUs do now.

In: the address of a Prometheus, the name of a dashboard with a number of hours, or names of nodes. Out: a document.
Each panel has its answer, or the reason why there is none; of many series, the largest are kept. The answers are
hostile until checked.

Source: Prometheus' HTTP API, "Range queries"; Grafana's variables `$__rate_interval` and `$__range`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import dra_driver
from dra_driver.base.errors import ApiError, InputError
from dra_driver.base.names import gpu_name, is_dns_subdomain, normal_pci_address
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.tools.usage.from_prometheus import PrometheusAddress, ask_range, ask_samples
from dra_driver.tools.world.access import DocumentKind, OutputDocument

# The shipped Grafana dashboards, reduced to the kinds of panels that the console draws: figures and lines over
# time.

_PACKAGE = Path(dra_driver.__file__).parent
_PLACES = (_PACKAGE / "dashboards", _PACKAGE.parent / "deploy" / "dashboards")
_FILE = "dashboards.yaml"
_DRAWN = {"stat": "figure", "timeseries": "lines", "bars": "lines"}


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel: `kind` is figure or lines; `queries` are pairs of an expression and the name of its series."""

    row: str
    title: str
    kind: str
    unit: str
    note: str
    is_stacked: bool
    queries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuDashboard:
    """A dashboard. `variables` are names that its expressions contain as `$name`."""

    title: str
    about: str
    variables: tuple[str, ...]
    panels: tuple[DashboardPanel, ...]


@cache
def gpu_dashboards() -> dict[str, GpuDashboard]:
    """Return all dashboards by their names."""
    import yaml

    path = next(place / _FILE for place in _PLACES if (place / _FILE).is_file())
    return {
        name: GpuDashboard(
            table["title"].removeprefix("GPUs: "), table["about"], tuple(table.get("variables", {})),
            tuple(_panels(table)),
        )
        for name, table in yaml.safe_load(path.read_text()).items()
    }  # fmt: skip


def _panels(table: Mapping[str, Any]) -> Iterator[DashboardPanel]:
    for row in table["rows"]:
        for one in row["panels"]:
            kind = _DRAWN.get(one.get("kind", "timeseries"))
            if kind is not None:
                queries = tuple((query["expr"], query.get("legend", "")) for query in one["queries"])
                unit, note = one.get("unit", "short"), one.get("note", "")
                yield DashboardPanel(row["title"], one["title"], kind, unit, note, bool(one.get("stacked")), queries)


MAX_HOURS = 24 * 31
_AT_ONCE = 4
_POINTS = 120  # points of a line
_NOW_S = 300  # what a figure takes for now: several scrapes, even at one a minute
_SCRAPES_S = 60  # added to the time between two points of a line, so that each has a scrape before it
_LEAST_S = 240
_SIGN_OF_LIFE = "count(dra_driver_registered)"  # every agent has this series from its start on
_MAX_SERIES = 8  # series of a panel
_MAX_READ = 2_000  # series of one answer
_LONGEST = 200  # characters of a name
_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Point = list[float | None]


@dataclass(frozen=True, slots=True)
class _Period:
    """The times that a dashboard is about. `asked_s` is the length that was chosen; `begin` is not before the data."""

    begin: datetime
    end: datetime
    asked_s: int

    @property
    def seconds(self) -> int:
        """The length that has data."""
        return max(1, math.ceil((self.end - self.begin).total_seconds()))

    def times(self, kind: str) -> tuple[datetime, int, int]:
        """Return the first time of a panel's answer, the seconds between two times, and those that a rate looks back.

        A rate over more than there is would be too low, because it is divided by the whole time.
        """
        step = max(15, math.ceil(self.seconds / _POINTS))
        wanted = _NOW_S if kind == "figure" else max(_LEAST_S, step + _SCRAPES_S)
        back = min(wanted, max(self.seconds, _SCRAPES_S))
        is_whole = self.seconds >= self.asked_s
        begin = self.begin if is_whole else min(self.end, self.begin + timedelta(seconds=back))
        return (self.end if kind == "figure" else begin), step, back


def dashboard(address: PrometheusAddress, name: str, hours: int, now: datetime) -> OutputDocument:
    """Return the document of a dashboard. Raises: InputError for an unknown dashboard, UsageError for a bad URL.

    Its beginning is that of the data, if Prometheus has less than the hours that were asked for.
    """
    known = gpu_dashboards()
    if name not in known or not 0 < hours <= MAX_HOURS:
        raise InputError("question", f"a dashboard is one of {', '.join(known)}, over 1 to {MAX_HOURS} hours")
    chosen, api = known[name], address.connect()
    try:
        period = _Period(_data_begin(api, now - timedelta(hours=hours), now), now, hours * 3600)
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            panels = list(threads.map(lambda one: _panel(api, chosen, one, period), chosen.panels))
    finally:
        api.close()
    content = {
        "name": name,
        "title": chosen.title,
        "about": chosen.about,
        "begin": period.begin.isoformat(),
        "end": now.isoformat(),
        "panels": panels,
        "others": [{"name": key, "title": one.title} for key, one in known.items()],
    }
    return OutputDocument(DocumentKind.DASHBOARD, content)


def _data_begin(api: KubeApi, begin: datetime, end: datetime) -> datetime:
    """Return when the agents' data begins, within a minute; `begin` if it is older, or if there is none."""
    while True:
        step = max(15, math.ceil((end - begin).total_seconds() / _POINTS))
        first = _first_sign(api, begin, end, step)
        if first is None or first - begin <= timedelta(seconds=step):
            return begin
        if step <= _SCRAPES_S:
            return first
        begin, end = first - timedelta(seconds=step), first


def _first_sign(api: KubeApi, begin: datetime, end: datetime, step_s: int) -> datetime | None:
    try:
        series = list(_series(ask_range(api, _SIGN_OF_LIFE, begin, end, step_s), ""))
    except ApiError:
        return None
    earliest, latest = begin.timestamp() - 1, end.timestamp() + 1  # questions are asked in whole seconds
    times = [time for one in series for time, _ in one["points"] if earliest <= time <= latest]
    return datetime.fromtimestamp(min(times), begin.tzinfo) if times else None


def _panel(api: KubeApi, of: GpuDashboard, panel: DashboardPanel, period: _Period) -> Wire:
    begin, step, back = period.times(panel.kind)
    series: list[Wire] = []
    fault = None
    try:
        for expression, legend in panel.queries:
            query = _written(expression, of, back, period.asked_s)
            series += _series(ask_range(api, query, begin, period.end, step), legend)
    except ApiError as error:
        fault = error.message[:300]
    series.sort(key=lambda one: -max(value or 0.0 for _, value in one["points"]))
    return {
        "row": panel.row,
        "title": panel.title,
        "kind": panel.kind,
        "unit": panel.unit,
        "note": panel.note,
        "stacked": panel.is_stacked,
        "series": _distinguished(series[:_MAX_SERIES]),
        "more": max(0, len(series) - _MAX_SERIES),
        "fault": fault,
    }


def _written(expression: str, of: GpuDashboard, back_s: int, range_s: int) -> str:
    """Return an expression with Grafana's variables replaced: by a pattern for all values, and by durations."""
    found = expression.replace("$__rate_interval", f"{back_s}s").replace("$__range", f"{range_s}s")
    for name in of.variables:
        found = found.replace(f"${name}", ".*")
    return found


def _distinguished(series: Sequence[Wire]) -> list[Wire]:
    """Return series without their labels; to names that several of them have, the labels that differ are added."""
    alike: dict[str, list[Wire]] = {}
    for one in series:
        alike.setdefault(one["name"], []).append(one["labels"])
    found = []
    for one in series:
        labels, others = one["labels"], alike[one["name"]]
        own = [str(value) for key, value in labels.items() if any(other.get(key) != value for other in others)]
        name = " ".join(filter(None, (one["name"], *own)))[:_LONGEST]
        found.append({"name": name, "points": one["points"]})
    return found


def _series(answer: Wire, legend: str) -> Iterator[Wire]:
    """Yield the name, the labels and the points of each series that has any. Raises: ApiError for another answer."""
    data = answer.get("data")
    rows = data.get("result") if answer.get("status") == "success" and isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > _MAX_READ:
        raise ApiError("prometheus", "this is not the answer to a query, or it has too many series")
    for row in rows:
        labels, values = (row.get("metric"), row.get("values")) if isinstance(row, dict) else (None, None)
        if isinstance(labels, dict) and isinstance(values, list):
            points = [point for one in values[: 2 * _POINTS] if (point := _point(one)) is not None]
            if points:
                yield {"name": _named(legend, labels), "labels": labels, "points": points}


def _point(value: Any) -> Point | None:
    if not isinstance(value, Sequence) or len(value) != 2 or not isinstance(value[0], int | float):
        return None
    try:
        number = float(value[1])
    except (TypeError, ValueError):
        return None
    return [float(value[0]), number if math.isfinite(number) else None]


def _named(legend: str, labels: Mapping[str, Any]) -> str:
    if legend:
        return _FIELD.sub(lambda found: str(labels.get(found[1], "")), legend).strip()[:_LONGEST]
    return ", ".join(f"{key}={value}" for key, value in labels.items() if key != "__name__")[:_LONGEST]


# What the GPUs of some nodes do now, in the metrics of every vendor.

MAX_NODES = 100  # of one question


@dataclass(frozen=True, slots=True)
class _VendorMetrics:
    """The labels of a vendor's metrics with the node, the PCI address and the part of a GPU, and these metrics.

    Each has the name of the reading, and the factor that makes it percent, bytes, degrees or watts.
    """

    node: str
    address: str
    part: str
    metrics: Mapping[str, tuple[str, float]]


_MIB = float(1 << 20)
_VENDORS = (
    _VendorMetrics("Hostname", "pci_bus_id", "GPU_I_ID", {
        "DCGM_FI_DEV_GPU_UTIL": ("busyPercent", 1), "DCGM_FI_DEV_FB_USED": ("memoryBytes", _MIB),
        "DCGM_FI_DEV_GPU_TEMP": ("celsius", 1), "DCGM_FI_DEV_POWER_USAGE": ("watts", 1),
    }),
    _VendorMetrics("hostname", "pci_bus_id", "gpu_partition_id", {
        "gpu_gfx_activity": ("busyPercent", 1), "gpu_used_vram": ("memoryBytes", _MIB),
        "gpu_junction_temperature": ("celsius", 1), "gpu_power_usage": ("watts", 1),
    }),
    _VendorMetrics("node", "pci_bdf", "", {
        "hw_gpu_utilization_ratio": ("busyPercent", 100), "hw_memory_usage_bytes": ("memoryBytes", 1),
        "hw_temperature_celsius": ("celsius", 1), "hw_power_watts": ("watts", 1),
    }),
)  # fmt: skip
_READINGS = ("busyPercent", "memoryBytes", "celsius", "watts")


def readings(address: PrometheusAddress, nodes: Sequence[str], now: datetime) -> OutputDocument:
    """Return the document of what was measured last of the GPUs of some nodes, by node and device name.

    Of a GPU that several claims share, the highest value counts. Raises: InputError for names that no node has, or too
    many; ApiError, UsageError.
    """
    if not 0 < len(nodes) <= MAX_NODES or not all(map(is_dns_subdomain, nodes)):
        raise InputError("question", f"nodes are 1 to {MAX_NODES} names of nodes, with commas between them")
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    api = address.connect()
    try:
        for vendor in _VENDORS:
            for sample in ask_samples(api, _query_of(vendor, nodes), now):
                device = _device_of(sample.labels.get(vendor.address, ""))
                field, factor = vendor.metrics.get(sample.name, ("", 1.0))
                node = sample.labels.get(vendor.node, "")
                if device and field and node in nodes:
                    values = found.setdefault(node, {}).setdefault(device, dict.fromkeys(_READINGS))
                    values[field] = max(values[field] or 0.0, round(sample.value * factor, 3))
    finally:
        api.close()
    return OutputDocument(DocumentKind.READINGS, {"at": now.isoformat(), "nodes": found})


def _query_of(vendor: _VendorMetrics, nodes: Sequence[str]) -> str:
    names, hosts = "|".join(vendor.metrics), "|".join(name.replace(".", "[.]") for name in nodes)
    whole = f',{vendor.part}=""' if vendor.part else ""
    by = f"__name__, {vendor.node}, {vendor.address}"
    return f'max by ({by}) ({{__name__=~"{names}",{vendor.node}=~"{hosts}"{whole}}})'


def _device_of(address: str) -> str:
    """Return the name of the GPU at a PCI address; "" if it is none."""
    try:
        return gpu_name(normal_pci_address(address))
    except ValueError:
        return ""
