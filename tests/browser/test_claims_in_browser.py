"""Claims and the live cluster in a browser."""

from __future__ import annotations

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from tests.support.console.cluster import fill, taint


@pytest.fixture
def cluster(tmp_path):
    with EmbeddedApi() as api:
        fill(api)
        yield api, str(api.write_kubeconfig(tmp_path / "kubeconfig"))


def test_a_lost_gpu_turns_red_without_a_reload(open_console, cluster):
    api, kubeconfig = cluster
    page = open_console("--kubeconfig", kubeconfig)
    page.wait_for_selector(".part.state-held")
    page.evaluate("window.isSamePage = true")
    taint(api, "gpu-b")
    page.wait_for_selector(".part.state-tainted")
    assert page.evaluate("window.isSamePage")


def test_a_claim_that_waits_is_listed_first_with_the_reason(open_console, cluster):
    _, kubeconfig = cluster
    page = open_console("--kubeconfig", kubeconfig)
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_selector(".claim")
    first = page.locator(".claim").first
    assert "waiting" in first.inner_text()
    first.click()
    page.wait_for_selector('.reasons .message.bad:has-text("held by")')
    assert "gpu-a" in page.locator(".funnel").first.inner_text()
    assert "would have to be freed" in page.locator(".changes").inner_text()
