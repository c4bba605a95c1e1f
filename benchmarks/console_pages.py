"""The console's map in a browser: scripting for each frame while 10,000 nodes are scrolled, and elements in the page.

    python -m benchmarks.console_pages

In: a Chromium and `requirements-browser.lock` (`make test-browser` installs it). Out: figures beside their budgets.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.figures import Report
from tests.support.console.process import running_console

FRAMES, PIXELS, ROW = 120, 400, 76  # more than five rows a frame: every frame draws rows that were not there
_NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    program = shutil.which("chromium") or sys.exit("there is no Chromium on this machine: apt-get install chromium")
    report = Report()
    with running_console("--fleet", "dgx-h100=10000") as console, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]).new_page()
        began = time.perf_counter()
        page.goto(console.address)
        page.wait_for_selector(".tile", timeout=60_000)
        report.add("map: address opened to first node drawn", time.perf_counter() - began, "s", budget=5.0)
        frames = sorted(_scripting_ms(page))
        report.add("map: scripting of a scroll frame, median", frames[len(frames) // 2], "ms", budget=16.0)
        report.add("map: scripting of a scroll frame, 95 of 100", frames[len(frames) * 95 // 100], "ms", budget=16.0)
        count = page.evaluate("document.querySelectorAll('*').length")
        report.add("map: elements in the page", count, "elements", budget=2500.0)
    print("\n" + report.table())


def _scripting_ms(page: Any) -> list[float]:
    """Return the milliseconds of scripting for each of many steps: the scroll, what is read for it, the rows drawn."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def scripted() -> float:
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return float(found["ScriptDuration"]) * 1e3

    took = []
    for number in range(FRAMES):
        before = scripted()
        page.evaluate(f"document.querySelector('.map').scrollTop = {number * PIXELS}")
        page.wait_for_selector(f'.row[data-index="{number * PIXELS // ROW + 5}"]')
        page.evaluate(_NEXT_FRAME)
        took.append(scripted() - before)
    return took


if __name__ == "__main__":
    main()
