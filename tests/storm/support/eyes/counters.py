"""Counters: no total may fall, whichever of a node's agents shows it, however often they are killed or replaced.

In: pages of metrics. Out: series that fell. The totals of hours are the node's: they are compared across all agents,
with what was shown one round earlier, because two agents do not read at the same moment. All other totals are those of
one process. At the end the hours of each namespace are compared with what the storm knows.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator

from tests.storm.support.node.agents import Agent

OF_NODE = (
    "dra_allocated_seconds_total",
    "dra_busy_seconds_total",
    "dra_measured_seconds_total",
    "dra_unclaimed_seconds_total",
    "dra_claim_allocated_seconds_total",
)
ROUND_S = 2.5  # two rounds of measurement, and some time to be scheduled
_SAMPLE = re.compile(r"^(?P<series>(?P<name>[a-z_A-Z:][a-zA-Z0-9_:]*)(\{.*\})?) (?P<value>[-+.0-9eE]+)$", re.MULTILINE)
_NAMESPACE = re.compile(r'[{,]namespace="([^"]*)"')


def samples(page: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, series and value of each total on a page."""
    for found in _SAMPLE.finditer(page):
        if found["name"].endswith("_total"):
            yield found["name"], found["series"], float(found["value"])


class Counters:
    """The highest values that were shown so far."""

    def __init__(self) -> None:
        self._of_node: dict[str, list[tuple[float, float]]] = defaultdict(list)  # (time, value), both only rise
        self._of_process: dict[tuple[int, str], float] = {}
        self.wrong: list[str] = []
        self.pages = 0

    def take(self, agent: Agent, asked_at: float) -> None:
        """Read an agent's page and compare it."""
        page = agent.scrape()
        if page is None:
            return
        self.pages += 1
        for name, series, value in samples(page):
            if name in OF_NODE:
                self._compare_node(agent, series, value, asked_at)
            else:
                key = (agent.process.pid, series)
                if value < self._of_process.get(key, 0.0):
                    self.wrong.append(f"{series} of one process fell from {self._of_process[key]} to {value}")
                self._of_process[key] = value

    def _compare_node(self, agent: Agent, series: str, value: float, asked_at: float) -> None:
        shown = self._of_node[series]
        before = max((one for at, one in shown if at < asked_at - ROUND_S), default=0.0)
        if value < before - 1e-6:
            self.wrong.append(f"{series} fell from {before} to {value} (agent {agent.uid})")
        if not shown or value > shown[-1][1]:
            shown.append((time.monotonic(), value))
            del shown[:-40]

    def hours(self) -> dict[str, float]:
        """Return the device-seconds of each namespace that were shown last, without those of shares."""
        found: dict[str, float] = defaultdict(float)
        for series, shown in self._of_node.items():
            is_share = '-share"' in series
            if series.startswith(OF_NODE[0]) and not is_share and (namespace := _NAMESPACE.search(series)):
                found[namespace[1]] += shown[-1][1]
        return dict(found)
