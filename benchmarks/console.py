"""The console on 10,000 nodes: first page, whole fleet, memory, selectors, and its cost while no page is open.

`python -m benchmarks --only console`. A process of its own, asked over HTTP as a browser does.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.figures import Report
from tests.support.console.process import RunningConsole, running_console

NODES, PROFILE = 10_000, "dgx-h100"
SELECTOR = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].productName.contains("H100")'
APART = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].?uuid.orValue("").contains("7")'
NINE = "[1,2,3,4,5,6,7,8,9]"
IDLE_SECONDS = 10.0


def run(report: Report) -> None:
    """Measure a large fleet, then a small one."""
    began = time.perf_counter()
    with running_console("--fleet", f"{PROFILE}={NODES}") as console:
        console.enter()
        console.send("GET", "/", cookie=console.cookie)
        report.add("console: process start to first page", time.perf_counter() - began, "s", budget=1.0)
        while console.ask("summary").status != 200:
            time.sleep(0.01)
        report.add(f"console: {NODES:,} nodes loaded, from process start", time.perf_counter() - began, "s", budget=5.0)
        bomb = "a + b + c + d + e + f > 0"
        for name in "fedcba":
            bomb = f"{NINE}.all({name}, {bomb})"
        for name, asked, question, statuses in (
            ("a page of 40 nodes out of 10,000", "fleet", {"offset": "5000", "count": "40"}, {200}),
            ("a selector on 80,000 devices", "selector", {"expression": SELECTOR}, {200}),
            ("a selector that tells nodes apart", "selector", {"expression": APART}, {200}),
            ("the map filtered by a selector", "fleet", {"expression": SELECTOR, "count": "40"}, {200}),
            ("the map filtered by one that tells nodes apart", "fleet", {"expression": APART, "count": "40"}, {200}),
            ("a cost bomb is answered", "selector", {"expression": bomb, "environment": "stored"}, {200, 422}),
        ):
            report.add(f"console: {name}", _median_s(console, asked, question, statuses), "s", budget=1.0)
        pids = _family(console.process.pid)
        report.add("console: resident memory, both processes", sum(map(_own_mib, pids)), "MiB", budget=250.0)
        before = sum(map(_cpu_s, pids))
        time.sleep(IDLE_SECONDS)
        used = (sum(map(_cpu_s, pids)) - before) / IDLE_SECONDS
        report.add("console: processor time while no page is open", used * 100, "% of a core", budget=0.2)
    with running_console("--fleet", f"{PROFILE}=125") as console:
        console.ready()
        seconds = _median_s(console, "selector", {"expression": SELECTOR})
        report.add("console: a selector on 1,000 devices", seconds, "s", budget=0.1)


def _median_s(console: RunningConsole, asked: str, question: Any, statuses: Collection[int] = (200,)) -> float:
    """Return the median of the seconds that five answers take; each must have one of the statuses."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        reply = console.post_once(asked, question)
        took.append(time.perf_counter() - began)
        assert reply.status in statuses, reply.body
    return sorted(took)[2]


def _family(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _own_mib(pid: int) -> float:
    """Return a process's share of memory in MiB: pages that several share count once (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _cpu_s(pid: int) -> float:
    """Return the seconds that a process's threads have run, to the nanosecond: a clock tick is half of the budget."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
