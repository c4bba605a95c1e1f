"""Answers that come late, not at all, or after the page that asked for them was left."""

from __future__ import annotations

import pytest

from tests.browser.support.slow_proxy import slow_proxy

FLEET = ("--fleet", "demo-h100")


@pytest.fixture
def proxy():
    with slow_proxy() as running:
        yield running


def test_a_question_that_is_ended_in_the_middle_of_its_answer_has_no_answer(open_console, proxy):
    page = open_console(*FLEET, proxy=proxy.address)
    page.wait_for_selector(".tile")
    proxy.halved.add("/api/v1/claims")
    with page.expect_response(lambda answer: "/api/v1/claims" in answer.url):
        page.evaluate("location.hash = '#/what-if'")
    proxy.halved.clear()
    with page.expect_response(lambda answer: "/api/v1/claims" in answer.url) as second:
        page.evaluate("location.hash = '#/what-if?by=other'")
    second.value.finished()
    page.wait_for_selector("textarea")
