"""A headless Chromium, and pages of a console in it. Every fault that a page reports fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.console.process import running_console
from tests.support.metering.prometheus_double import PrometheusDouble
from tests.support.metering.usage_week import week

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="make test-browser installs playwright", exc_type=ImportError
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPENED = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


class Faults:
    """What a page must not do: errors, violations of its policy, requests that leave its origin."""

    def __init__(self, page: Any, origin: str) -> None:
        self.found: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url, origin))
        page.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " (e) => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI}`))"
        )

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.found.append(f"{message.type}: {message.text}")

    def _request(self, url: str, origin: str) -> None:
        if not url.startswith((f"{origin}/", f"blob:{origin}/", "data:")):
            self.found.append(f"left the origin: {url}")


@pytest.fixture
def open_page(browser: Any) -> Iterator[OPENED]:
    """Return a function that opens an address in a browser of its own."""
    with ExitStack() as stack:
        faults: list[Faults] = []

        def opened(address: str, scheme: str = "light", width: int = 1400, proxy: str = "") -> Any:
            origin = "/".join(address.split("/")[:3])
            looks: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
            through = {"proxy": {"server": proxy, "bypass": "<-loopback>"}} if proxy else {}
            context = browser.new_context(**looks, **through)
            stack.callback(context.close)
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=origin)
            page = context.new_page()
            page.set_default_timeout(60_000)
            faults.append(Faults(page, origin))
            page.goto(address)
            return page

        yield opened
        assert [fault for one in faults for fault in one.found] == []


@pytest.fixture
def open_console(open_page: OPENED) -> Iterator[OPENED]:
    """Return a function that starts a console with some options and opens it in a browser of its own."""
    with ExitStack() as stack:

        def opened(*words: str, env: dict[str, str] | None = None, **looks: Any) -> Any:
            return open_page(stack.enter_context(running_console(*words, env=env)).address, **looks)

        yield opened


@pytest.fixture
def prometheus() -> Iterator[PrometheusDouble]:
    """Return a Prometheus that has a week of use, and lines for every panel."""
    double = PrometheusDouble(list(week()), datetime.now(UTC) - timedelta(hours=167))
    double.series = {"train": [float(at % 7) for at in range(100)], "web": [2.0] * 100}
    yield double
    double.stop()


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core, which the browser's debugger runs in a page, so that its policy does not apply."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text()
