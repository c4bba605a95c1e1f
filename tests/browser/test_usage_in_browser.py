"""Usage, cost and dashboards, and the doctor, in a browser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from tests.support.console.cluster import fill
from tests.support.metering.usage_week import PRICES


def test_hours_cost_and_dashboards_are_drawn_and_another_dashboard_can_be_chosen(open_console, prometheus, tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    words = ("--prometheus", prometheus.url, "--prices", str(tmp_path / "prices.yaml"))
    page = open_console("--fleet", "demo-h100", *words)
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_selector('tbody tr:has-text("train") .hours')
    assert "USD" in page.locator("tfoot").inner_text()
    page.locator(".choices select").first.select_option("claim")
    page.wait_for_selector('tbody tr:has-text("web/idle")')
    page.wait_for_selector(".canvas canvas")
    page.get_by_role("button", name="health", exact=True).click()
    page.wait_for_selector('.panels h4:has-text("Faults by kind")')
    assert "name=health" in page.url
    page.reload()
    page.wait_for_selector('.panels h4:has-text("Faults by kind")')


def test_plots_begin_with_the_data_and_keep_their_axis_without_any(open_console, prometheus):
    prometheus.born = datetime.now(UTC) - timedelta(minutes=50)
    prometheus.rates = {(("model", "H100"),): 16.0}
    page = open_console("--fleet", "demo-h100", "--prometheus", prometheus.url)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/usage'")
    page.wait_for_selector('.message:has-text("has measurements of these agents since")')
    figure = page.locator('.number:has-text("GPUs")').first.inner_text()
    assert figure.split() == ["GPUs", "16"]
    prometheus.rates = {}
    page.reload()
    page.wait_for_selector('.legend:has-text("nothing was measured in this time")')
    assert page.locator(".canvas canvas").count() == page.locator(".card.chart").count()


def test_without_a_prometheus_the_page_says_how_to_name_one(open_console):
    page = open_console("--fleet", "demo-h100")
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/usage'")
    page.wait_for_selector('code:has-text("--prometheus")')


@pytest.fixture
def kubeconfig(tmp_path):
    with EmbeddedApi() as api:
        fill(api)
        yield str(api.write_kubeconfig(tmp_path / "kubeconfig"))


def test_the_doctors_findings_have_their_evidence_and_remedy(open_console, kubeconfig):
    page = open_console("--kubeconfig", kubeconfig)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/health'")
    page.wait_for_selector('details:has-text("what to do")')
    page.locator("details summary").first.click()
    page.wait_for_selector('details[open] dt:has-text("how it is known")')
