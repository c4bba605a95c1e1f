"""The site's playground in a browser: the first verdict after a cold load, and the verdicts while somebody types.

    make site && python -m benchmarks.site [FOLDER]

In: the folder of a site (`build/site`), a Chromium and `requirements-browser.lock` (`make test-browser` installs it).
Out: figures beside their budgets. Every load has a browser of its own, so that nothing is in its cache.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.figures import Report, percentiles

LOADS = 3
TYPED = ' && device.attributes["gpu.nvidia.com"].productName.contains("H100")'
# Asks the page's engine, and returns how long each answer took.
_TIMED = """async (questions) => {
  const { ask } = await import("./common/api.js");
  const took = [];
  for (const question of questions) {
    const began = performance.now();
    await ask("selector", question);
    took.push((performance.now() - began) / 1000);
  }
  return took;
}"""


def main() -> None:
    program = shutil.which("chromium") or sys.exit("there is no Chromium on this machine: apt-get install chromium")
    folder = sys.argv[1] if len(sys.argv) > 1 else "build/site"
    command = [sys.executable, "deploy/site/serve.py", folder, "--port", "0"]
    report = Report()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        address = f"{server.stdout.readline().strip() if server.stdout else ''}playground/index.html"
        loads = []
        for _ in range(LOADS):
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            loads.append(_first_verdict(browser, address))
            browser.close()
        report.add("playground: first verdict after a cold load, median", statistics.median(loads), "s", budget=6.0)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        middle, high, _ = percentiles(_typing(browser, address))
        report.add("playground: a verdict while typing, median", middle, "ms", budget=50.0)
        report.add("playground: a verdict while typing, 95 of 100", high, "ms")
        browser.close()
        server.terminate()
    print("\n" + report.table())


def _first_verdict(browser: Browser, address: str) -> float:
    """Return the seconds from the address to the first devices with their verdicts."""
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".device", timeout=120_000)
    return time.perf_counter() - began


def _typing(browser: Browser, address: str) -> list[float]:
    """Return the seconds from a question to its answer, for every text that there is while a selector is typed."""
    page = browser.new_page()
    page.goto(f"{address}#/playground?fleet=dgx-h100&kubernetes=1.36")
    page.wait_for_selector(".device", timeout=120_000)
    start = 'device.driver == "gpu.nvidia.com"'
    questions: list[dict[str, Any]] = [
        {"expression": start + TYPED[:end], "kubernetes": "1.36", "fleet": "dgx-h100"} for end in range(len(TYPED) + 1)
    ]
    return list(page.evaluate(_TIMED, questions))


if __name__ == "__main__":
    main()
