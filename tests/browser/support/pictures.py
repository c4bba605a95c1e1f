"""Take the pictures of docs/console.md and the README.

    python -m tests.browser.support.pictures FOLDER

In: a Chromium. Out: a PNG for each page, in light and dark.
"""

from __future__ import annotations

import math
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.support.scene import write_scene
from tests.support.console.process import running_console
from tests.support.metering.prometheus_double import PrometheusDouble
from tests.support.metering.usage_week import PRICES, week

SELECTOR = """device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].productName.contains("H100") &&
  device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("40Gi"))"""


def fleet(page: Any) -> None:
    page.locator(".tile:has(.state-held)").nth(3).click()
    page.wait_for_selector(".panel .card")


def claims(page: Any) -> None:
    page.locator(".claim").first.click()
    page.wait_for_selector(".reasons")


def playground(page: Any) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(SELECTOR)
    page.wait_for_selector('.outcome:has-text("match")')
    page.locator(".device.match").first.click()
    page.wait_for_selector(".tree")


def usage(page: Any) -> None:
    page.wait_for_selector(".canvas canvas")
    page.locator(".panels").nth(1).scroll_into_view_if_needed()
    page.locator(".bench").evaluate("one => { one.scrollTop = one.querySelector('.panels').offsetTop - 330; }")


def what_if(page: Any) -> None:
    page.get_by_label("Nodes added").fill("dgx-h100=1")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector(".both")


PAGES = {
    "fleet": (".tile", fleet),
    "claims": (".claim", claims),
    "playground": (".device", playground),
    "what-if": ("textarea", what_if),
    "usage": (".hours", usage),
}


def measured(scratch: Path) -> list[str]:
    """Return the options for a Prometheus that has a week of use, and for prices."""
    double = PrometheusDouble(list(week()), datetime.now(UTC) - timedelta(hours=167))
    waves = {"train": (40, 12, 0.0), "serving": (22, 3, 2.0), "notebooks": (9, 5, 4.0)}
    for name, (level, height, shift) in waves.items():
        double.series[name] = [level + height * math.sin(at / 9 + shift) for at in range(120)]
    double.figures = {"busy": 0.74, "unclaimed": 0.0, "faults": 1.0, "POWER": 41_200.0}
    prices = scratch / "prices.yaml"
    prices.write_text(PRICES)
    return ["--prometheus", double.url, "--prices", str(prices)]


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        scene, prometheus = write_scene(Path(scratch)), measured(Path(scratch))
        for scheme in ("light", "dark"):
            with running_console("-f", scene, "--kubernetes", "1.36", *prometheus) as console:
                page = browser.new_context(viewport={"width": 1280, "height": 760}, color_scheme=scheme).new_page()
                page.goto(console.address)
                page.wait_for_selector(".tile")
                for name, (seen, prepare) in PAGES.items():
                    page.evaluate(f"location.hash = '#/{name}'")
                    page.wait_for_selector(seen)
                    prepare(page)
                    page.wait_for_timeout(400)
                    page.screenshot(path=folder / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
