"""Claims and the live cluster in a browser."""

from __future__ import annotations

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from tests.support.console.cluster import add_event, add_pod, fill, taint


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


def test_a_fault_leads_to_its_pods_their_events_and_what_to_do_next(open_console, cluster):
    api, kubeconfig = cluster
    add_pod(api, "team-a", "user", "mine")
    add_event(api, "Pod/team-a/user", "FailedPrepareDynamicResources", "the claim's config was refused")
    add_event(api, "Node/default/n1", "RemediationReset", "device gpu-a: stage reset")
    taint(api, "gpu-a")
    page = open_console("--kubeconfig", kubeconfig)
    page.locator('.tile[data-device="gpu-a"]').click()
    page.wait_for_selector('.panel .history .events:has-text("stage reset")')
    page.locator('.command:has-text("kubectl delete pod user -n team-a") button').click()
    page.wait_for_selector('.command button:has-text("Copied")')
    assert page.evaluate("navigator.clipboard.readText()") == "kubectl delete pod user -n team-a"
    page.get_by_role("link", name="team-a/user").click()
    page.wait_for_selector('.panel .history .events:has-text("the claim\'s config was refused")')
    assert "kubectl describe pod user -n team-a" in page.locator(".panel").inner_text()


def test_claims_stand_in_groups_and_the_address_keeps_the_choice(open_console, cluster):
    page = open_console("--kubeconfig", cluster[1])
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/claims'")
    page.get_by_label("Order of the claims").select_option("node")
    page.wait_for_selector('.line.heading:has-text("n1 2")')
    page.reload()
    page.wait_for_selector('.line.heading:has-text("no node 1")')
