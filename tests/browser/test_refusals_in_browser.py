"""Answers that are errors or no documents at all: every page shows them, and none of them breaks a page."""

from __future__ import annotations

import json
import re

import pytest

FLEET = ("--fleet", "demo-h100")
PAGES = ("fleet", "claims", "playground", "health", "usage", "what-if")
QUESTIONS = re.compile("/api/v1/(?!events)")


def refusal(status, message):
    return {"status": status, "json": {"error": {"code": "x", "message": message, "hint": "try again"}}}


REFUSALS = {
    "no session": (refusal(401, "this browser has no session"), "this browser has no session (try again)"),
    "too many": (refusal(429, "too many questions"), "too many questions (try again)"),
    "busy": (refusal(503, "too many questions wait"), "too many questions wait (try again)"),
    "a bad gateway": ({"status": 502, "body": "<h1>Bad Gateway</h1>"}, "the console answered with status 502"),
    "a page": ({"body": "<!doctype html><title>Sign in</title>"}, "the console answered with status 200"),
    "null": ({"body": "null"}, "the console answered with status 200"),
    "a list": ({"body": "[]"}, "the console answered with status 200"),
    "an empty object": ({"body": "{}"}, "can't be shown: its field"),
    "half a document": ({"body": '{"rows": ['}, "the console answered with status 200"),
    "a text as the error": ({"status": 500, "json": {"error": "x"}}, "the console answered with status 500"),
    "no answer": (None, "the console did not answer"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_every_page_shows_why_it_has_no_answer_and_works_again_afterwards(open_console, kind):
    answer, message = REFUSALS[kind]
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/what-if'")
    page.route(QUESTIONS, lambda route: route.fulfill(**answer) if answer else route.abort())
    for name in PAGES:
        page.evaluate(f"location.hash = '#/{name}?by=node'")
        page.wait_for_selector(f"main.page-{name} > *")
        if name == "what-if":
            page.get_by_role("button", name="Simulate").click()
        page.wait_for_selector(f"main .message.bad:has-text({json.dumps(message)})")
        assert "undefined" not in page.locator("main").inner_text()
    page.unroute(QUESTIONS)
    for name in PAGES:
        page.evaluate(f"location.hash = '#/{name}?by=pod'")
        page.wait_for_selector(f"main.page-{name} > *")
        assert page.locator("main .message.bad").count() == 0


def test_pages_need_no_combined_abort_signals_which_browsers_have_only_since_2024(open_console):
    page = open_console(*FLEET)
    page.add_init_script("delete AbortSignal.any")
    page.reload()
    page.wait_for_selector(".tile")
    assert page.evaluate("AbortSignal.any === undefined")
    for name in PAGES:
        page.evaluate(f"location.hash = '#/{name}?by=node'")
        page.wait_for_selector(f"main.page-{name} > *")
        assert page.locator("main .message.bad").count() == 0


def test_a_device_that_can_not_be_asked_for_is_shown_with_the_reason(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.route("**/api/v1/device?*", lambda route: route.fulfill(**REFUSALS["busy"][0]))
    page.locator(".tile").first.click()
    page.wait_for_selector('.panel .message.bad:has-text("too many questions wait")')
    page.unroute("**/api/v1/device?*")
    page.locator(".tile").first.click()
    page.wait_for_selector('.panel h3:has-text("Attributes")')


def test_the_stream_of_events_is_opened_again_after_an_answer_that_is_an_error(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector('#link:has-text("live")')
    page.route("**/api/v1/events", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    page.reload()
    page.wait_for_selector('.notice:has-text("keeps trying to reach it")')
    page.unroute("**/api/v1/events")
    page.wait_for_selector('#link:has-text("live")')
    page.wait_for_selector(".notice", state="hidden")


def test_the_figures_are_asked_for_again_after_a_fault_that_passes(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".figures b")
    page.route("**/api/v1/summary?*", lambda route: route.abort())
    page.reload()
    page.wait_for_selector(".tile")
    assert page.locator(".figures b").count() == 0
    page.unroute("**/api/v1/summary?*")
    page.wait_for_selector(".figures b")
