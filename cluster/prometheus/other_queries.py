"""Dashboards and rules of others, as they are written for NVIDIA's exporter: what they ask, with variables resolved.

In: a folder of Grafana's JSON, of ConfigMaps that hold such, and of rule files. Out: queries as Grafana sends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SPANS = {"__rate_interval": "20s", "__interval": "5s", "__range": "1m", "__interval_ms": "5000", "__range_s": "60"}
_VARIABLE = re.compile(r"\$(?:\{(?P<long>\w+)(?::\w+)?\}|(?P<short>\w+))|\[\[(?P<old>\w+)(?::\w+)?\]\]")
_LABEL_VALUES = re.compile(r"label_values\(\s*(?:(?P<metric>.+),\s*)?(?P<label>\w+)\s*\)", re.DOTALL)
_EQUAL = re.compile(r"(?<![!=~<>])=\s*\"(?P<value>[^\"]*)\"")
_UNKNOWN = ".*"  # for a variable whose values come from another exporter
LabelValues = Callable[[str, str], list[str]]
"""Returns the values that a label has on a selector's series; "" is every series."""


@dataclass(frozen=True)
class Asked:
    """One query, and where it was found."""

    file: str
    title: str
    expression: str


def queries_of(folder: Path, values: LabelValues) -> Iterator[Asked]:
    """Yield every query of every dashboard and every rule below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".yaml", ".yml"}:
            name = str(path.relative_to(folder))
            for document in _documents(path):
                if isinstance(document.get("panels"), list):
                    yield from _of_dashboard(name, document, values)
                groups = (document.get("spec") or document).get("groups")
                yield from _of_rules(name, groups if isinstance(groups, list) else ())


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    try:
        found = list(yaml.safe_load_all(path.read_text()))  # JSON is YAML
    except yaml.YAMLError:
        return  # a chart's template
    for one in found:
        if not isinstance(one, dict):
            continue
        yield one.get("dashboard") if isinstance(one.get("dashboard"), dict) else one
        for text in (one.get("data") or {}).values() if one.get("kind") == "ConfigMap" else ():
            try:
                inner = yaml.safe_load(text)
            except yaml.YAMLError:
                continue
            if isinstance(inner, dict):
                yield inner


def _of_rules(name: str, groups: Any) -> Iterator[Asked]:
    for group in groups:
        for rule in group.get("rules", ()):
            yield Asked(name, rule.get("alert") or rule.get("record"), _without_threshold(rule["expr"]))


def _without_threshold(expression: str) -> str:
    """Return an alert's expression without the comparison at its end: it has data, whether it fires or not."""
    return re.sub(r"\s*(>=?|<=?|==|!=)\s*(bool\s+)?-?[\d.]+\s*$", "", expression)


def _of_dashboard(name: str, dashboard: dict[str, Any], values: LabelValues) -> Iterator[Asked]:
    chosen: dict[str, list[str]] = {}
    for variable in dashboard.get("templating", {}).get("list", ()):
        chosen[variable["name"]] = _chosen(variable, chosen, values)
    for panel in _panels(dashboard["panels"]):
        for target in panel.get("targets") or ():
            if target.get("expr"):
                yield Asked(name, panel.get("title", ""), filled(target["expr"], chosen))


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels") or [])


def _chosen(variable: dict[str, Any], chosen: dict[str, list[str]], values: LabelValues) -> list[str]:
    asked = variable.get("query")
    text = asked.get("query", "") if isinstance(asked, dict) else str(asked or "")
    if variable.get("type") == "query" and (found := _LABEL_VALUES.match(text)):
        return values(filled(found["metric"] or "", chosen), found["label"])
    current = (variable.get("current") or {}).get("value", text)
    known = [str(one) for one in (current if isinstance(current, list) else [current])]
    return [one for one in known if not one.startswith("$")] or [_UNKNOWN]


def _name(match: re.Match[str]) -> str:
    return match["long"] or match["short"] or match["old"]


def filled(expression: str, chosen: dict[str, list[str]]) -> str:
    """Return a query as Grafana sends it: regular expressions match all values, and equality means the first."""

    def all_of(match: re.Match[str]) -> str:
        found = chosen.get(_name(match)) or [_SPANS.get(_name(match), _UNKNOWN)]
        return found[0] if len(found) == 1 else f"({'|'.join(map(re.escape, found))})".replace("\\", "\\\\")

    def first_of(match: re.Match[str]) -> str:
        if not _VARIABLE.search(match["value"]):
            return match[0]
        text = _VARIABLE.sub(lambda one: (chosen.get(_name(one)) or [_UNKNOWN])[0], match["value"])
        return f'=~"{text}"' if _UNKNOWN in text else f'="{text}"'

    return _VARIABLE.sub(all_of, _EQUAL.sub(first_of, expression))
