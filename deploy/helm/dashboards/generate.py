"""The Grafana dashboards of this folder, made from dashboards.yaml.

    python deploy/dashboards/generate.py [--check]

Out: one JSON file for each dashboard, which Grafana imports as it is and the chart puts into ConfigMaps. `--check`
writes nothing and exits with 1 if a file differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
INSTANT = ("stat", "bargauge", "table")  # panels that show the value of one moment


def documents() -> dict[str, dict[str, Any]]:
    """Return every dashboard by the name of its file, as Grafana imports it."""
    tables = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    return {f"{name}.json": _dashboard(name, table) for name, table in tables.items()}


def _dashboard(name: str, table: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"dra-driver-{name}",
        "title": table["title"],
        "description": table["about"],
        "tags": ["gpu", "dra-driver"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "time": {"from": table["span"], "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *(_variable(*pair) for pair in table.get("variables", {}).items())]},
        "annotations": {"list": []},
        "panels": list(_placed(table["rows"])),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name},
        "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _placed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "panels": [], "gridPos": place}
        x, y = 0, y + 1
        height = 4 if all(panel.get("kind") == "stat" for panel in row["panels"]) else 8
        for panel in row["panels"]:
            width = panel.get("width", 8)
            if x + width > WIDTH:
                x, y = 0, y + height
            number += 1
            yield _panel(panel, number, {"h": height, "w": width, "x": x, "y": y})
            x += width
        y += height


def _panel(panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    defaults = {"unit": panel.get("unit", "short"), "min": 0} | ({"max": panel["top"]} if "top" in panel else {})
    if kind not in INSTANT:
        defaults["custom"] = _style(kind, is_stacked=panel.get("stacked", False))
    made = {
        "id": number,
        "type": kind if kind in INSTANT else "timeseries",
        "title": panel["title"],
        "description": panel.get("note", ""),
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(kind, index, query) for index, query in enumerate(panel["queries"])],
    }
    if kind in {"stat", "bargauge"}:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return made


def _style(kind: str, *, is_stacked: bool) -> dict[str, Any]:
    stacking = {"mode": "normal" if is_stacked else "none", "group": "A"}
    style = {"drawStyle": "bars" if kind == "bars" else "line", "fillOpacity": 20 if is_stacked else 5}
    return style | {"stacking": stacking, "showPoints": "never"}


def _target(kind: str, index: int, query: dict[str, str]) -> dict[str, Any]:
    target = {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query["expr"]}
    target |= {"legendFormat": query.get("legend", ""), "instant": kind in INSTANT, "range": kind not in INSTANT}
    return target | ({"format": "table"} if kind == "table" else {})


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    stale = []
    for name, document in documents().items():
        path, text = HERE / name, json.dumps(document, indent=1) + "\n"
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    for name in stale:
        print(f"{name} is out of date: run deploy/dashboards/generate.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
