"""Answers that come late, in another order, or after the page that asked for them was left."""

from __future__ import annotations

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from tests.browser.support.held_answers import HeldAnswers
from tests.browser.support.scene import write_scene
from tests.browser.support.slow_proxy import slow_proxy
from tests.support.console.cluster import fill, taint

FLEET = ("--fleet", "demo-h100")
FIRST_QUESTION = {
    "fleet": "fleet",
    "claims": "claims",
    "playground": "selector",
    "health": "attention",
    "usage": "offers",
    "what-if": "claims",
}


@pytest.fixture
def proxy():
    with slow_proxy() as running:
        yield running


def begin(page, proxy, name, action):
    """Do something that makes a page ask a question, and wait until the answer has begun to come, but not further."""
    proxy.halved.add(f"/api/v1/{name}")
    with page.expect_response(lambda answer: f"/api/v1/{name}" in answer.url):
        action()
    proxy.halved.clear()


def end(page, name, action):
    """Do something that makes a page give up the question."""
    with page.expect_event("requestfailed", lambda request: f"/api/v1/{name}" in request.url):
        action()


def test_a_question_that_is_ended_in_the_middle_of_its_answer_has_no_answer(open_console, proxy):
    page = open_console(*FLEET, proxy=proxy.address)
    page.wait_for_selector(".tile")
    begin(page, proxy, "claims", lambda: page.evaluate("location.hash = '#/what-if'"))
    with page.expect_response(lambda answer: "/api/v1/claims" in answer.url) as second:
        page.evaluate("location.hash = '#/what-if?by=other'")
    second.value.finished()
    page.wait_for_selector("textarea")


@pytest.mark.parametrize("name", FIRST_QUESTION)
def test_the_question_of_a_page_ends_when_the_page_is_left(open_console, proxy, name):
    page = open_console(*FLEET, proxy=proxy.address)
    page.wait_for_selector(".tile")
    begin(page, proxy, FIRST_QUESTION[name], lambda: page.evaluate(f"location.hash = '#/{name}?by=node'"))
    left_for = "claims" if name != "claims" else "health"
    end(page, FIRST_QUESTION[name], lambda: page.evaluate(f"location.hash = '#/{left_for}'"))
    page.wait_for_selector("main :is(.waits, .good)")
    assert page.evaluate("location.hash") == f"#/{left_for}"
    assert page.locator("main").get_attribute("class") == f"page-{left_for}"


def test_a_filter_that_is_typed_just_before_the_page_is_left_does_not_change_the_next_address(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.clock.install()
    for name, label in (("fleet", "Filter by node"), ("claims", "Filter by name")):
        page.evaluate(f"location.hash = '#/{name}'")
        page.get_by_label(label, exact=True).fill("x")
        page.evaluate("location.hash = '#/what-if'")
        page.wait_for_selector("textarea")
        page.clock.run_for(1000)
        assert page.evaluate("location.hash") == "#/what-if"


def test_a_newer_filter_of_claims_ends_the_question_of_an_older_one(open_console, proxy, tmp_path):
    page = open_console("-f", write_scene(tmp_path), proxy=proxy.address)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/claims'")
    page.wait_for_selector(".claim")
    field = page.get_by_label("Filter by name", exact=True)
    begin(page, proxy, "claims", lambda: field.fill("train"))
    end(page, "claims", lambda: field.fill("next-replica"))
    page.wait_for_selector('.filters [role="status"]:has-text("1 pending of 1")')
    page.get_by_label("Filter by namespace").fill("team-training")
    page.wait_for_selector('.waits:has-text("No claim or pod matches the filter")')


def test_a_newer_filter_of_nodes_ends_the_question_of_an_older_one(open_console, proxy):
    page = open_console(*FLEET, proxy=proxy.address)
    page.wait_for_selector(".tile")
    field = page.get_by_label("Filter by selector")
    begin(page, proxy, "fleet", lambda: field.fill("nonsense("))
    end(page, "fleet", lambda: field.fill("true"))
    page.wait_for_selector('.filters [role="status"]:has-text("1 node of 1")')
    assert page.locator(".message.bad").count() == 0


def test_the_verdict_on_a_text_that_was_deleted_is_not_shown(open_console, proxy):
    page = open_console(*FLEET, proxy=proxy.address)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/playground'")
    page.wait_for_selector(".device")
    page.locator(".cm-content").click()
    begin(page, proxy, "selector", lambda: page.keyboard.type(" "))
    page.keyboard.press("Control+A")
    end(page, "selector", lambda: page.keyboard.press("Delete"))
    page.wait_for_selector('.outcome:has-text("Type an expression")')
    assert page.locator(".device").count() == 0


def test_changes_that_come_faster_than_the_answers_do_not_keep_a_page_empty(open_console, tmp_path):
    with EmbeddedApi() as api:
        fill(api)
        page = open_console("--kubeconfig", str(api.write_kubeconfig(tmp_path / "kubeconfig")))
        page.wait_for_selector(".part.state-held")
        page.clock.install()
        held = HeldAnswers(page, "**/api/v1/attention?*")
        held.after(lambda: page.evaluate("location.hash = '#/health'"))
        with page.expect_response("**/api/v1/summary?*"):
            taint(api, "gpu-b")
        page.clock.run_for(1000)
        assert held.count() == 1
        held.release()
        page.wait_for_selector('.bench:has-text("Held by namespace")')
        page.clock.run_for(1000)
        page.wait_for_selector('.chip:has-text("tainted")')
