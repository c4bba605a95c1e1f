"""The data of a dashboard: its queries are sent to a Prometheus, for the last hours.

In: the address of a Prometheus, the name of a dashboard, a number of hours. Out: a document. Each panel has its answer,
or the reason why there is none; of many series, the largest are kept. The answers are hostile until checked.

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
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.tools.usage.from_prometheus import PrometheusAddress, ask_range
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
_MAX_SERIES = 8  # series of a panel
_MAX_READ = 2_000  # series of one answer
_LONGEST = 200  # characters of a name
_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Point = list[float | None]


def dashboard(address: PrometheusAddress, name: str, hours: int, now: datetime) -> OutputDocument:
    """Return the document of a dashboard. Raises: InputError for an unknown dashboard, UsageError for a bad URL."""
    known = gpu_dashboards()
    if name not in known or not 0 < hours <= MAX_HOURS:
        raise InputError("question", f"a dashboard is one of {', '.join(known)}, over 1 to {MAX_HOURS} hours")
    chosen, begin, api = known[name], now - timedelta(hours=hours), address.connect()
    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            panels = list(threads.map(lambda one: _panel(api, chosen, one, begin, now), chosen.panels))
    finally:
        api.close()
    content = {
        "name": name,
        "title": chosen.title,
        "about": chosen.about,
        "begin": begin.isoformat(),
        "end": now.isoformat(),
        "panels": panels,
        "others": [{"name": key, "title": one.title} for key, one in known.items()],
    }
    return OutputDocument(DocumentKind.DASHBOARD, content)


def _panel(api: KubeApi, of: GpuDashboard, panel: DashboardPanel, begin: datetime, end: datetime) -> Wire:
    step = max(15, math.ceil((end - begin).total_seconds() / _POINTS))
    series: list[Wire] = []
    fault = None
    try:
        for expression, legend in panel.queries:
            query = _written(expression, of, step, end - begin)
            series += _series(ask_range(api, query, begin, end, step), legend)
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
        "series": series[:_MAX_SERIES],
        "more": max(0, len(series) - _MAX_SERIES),
        "fault": fault,
    }


def _written(expression: str, of: GpuDashboard, step: int, span: timedelta) -> str:
    """Return an expression with Grafana's variables replaced: by a pattern for all values, and by durations."""
    found = expression.replace("$__rate_interval", f"{max(120, 4 * step)}s")
    found = found.replace("$__range", f"{span.total_seconds():.0f}s")
    for name in of.variables:
        found = found.replace(f"${name}", ".*")
    return found


def _series(answer: Wire, legend: str) -> Iterator[Wire]:
    data = answer.get("data")
    rows = data.get("result") if answer.get("status") == "success" and isinstance(data, dict) else None
    if not isinstance(rows, list) or len(rows) > _MAX_READ:
        raise ApiError("prometheus", "this is not the answer to a query, or it has too many series")
    for row in rows:
        labels, values = (row.get("metric"), row.get("values")) if isinstance(row, dict) else (None, None)
        if isinstance(labels, dict) and isinstance(values, list):
            points = [point for one in values[: 2 * _POINTS] if (point := _point(one)) is not None]
            if points:
                yield {"name": _named(legend, labels), "points": points}


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
