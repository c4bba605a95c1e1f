"""Servers of reviews, reviews with long deadlines, and API servers that end at once, not at their next check."""

import socketserver

import pytest

from dra_driver.tools.webhook import linting
from dra_driver.tools.webhook.review import ReviewDeadline
from tests.tools.webhook.support.serving import Serving


@pytest.fixture(autouse=True)
def _reviews_have_long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a review take as long as a busy machine needs; tests of deadlines set their own."""
    monkeypatch.setattr(ReviewDeadline.__init__, "__defaults__", (60.0,))
    monkeypatch.setattr(linting, "_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(linting, "_FAIR_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))


@pytest.fixture
def serving():
    made = Serving()
    yield made
    made.stop()
