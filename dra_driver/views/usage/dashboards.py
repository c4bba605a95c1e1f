"""The shipped Grafana dashboards, reduced to the kinds of panels that the console draws: figures and lines over time.

In: `dashboards.yaml`, which is beside the chart in a checkout and inside the package when installed. Out:
`GpuDashboard`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dra_driver

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
