"""Signing in to a console in the cluster with a token, and signing out."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.browser.support.held_answers import HeldAnswers
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.server import running_server


@pytest.fixture
def address(tmp_path):
    with GuardedApi() as api:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        api.add("team-token", "team", ("resourceslices", ""), ("resourceclaims", "team-a"))
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        with running_server(str(path), "--namespace", "team-a") as server:
            yield f"http://localhost:{server.port}"


def sign_in(page, token):
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def test_each_viewer_signs_in_with_a_token_and_sees_what_the_token_may_read(open_page, address, axe):
    page = open_page(address)
    page.wait_for_url("**/sign-in")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document)")["violations"]
    assert [one["id"] for one in found if one["impact"] in {"serious", "critical"}] == []
    sign_in(page, "wrong-token")
    page.wait_for_selector('.message.bad:has-text("does not accept this token")')
    sign_in(page, "team-token")
    page.wait_for_selector(".tile .state-held")
    assert page.evaluate("document.cookie") == ""
    assert "ResourceClaims of other namespaces may not be read" in page.locator(".figures").inner_text()
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_selector('.claim:has-text("mine")')
    assert page.locator('.claim:has-text("theirs")').count() == 0
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    sign_in(page, "admin-token")
    page.wait_for_selector(".tile")  # before that, the page of the sign-in would get the hash
    page.evaluate("location.hash = '#/claims'")
    page.wait_for_selector('.claim:has-text("theirs")')


def test_a_token_is_sent_once_however_often_it_is_submitted(open_page, address):
    page = open_page(address)
    page.wait_for_url("**/sign-in")
    held = HeldAnswers(page, re.compile("/sign-in$"))
    held.after(lambda: sign_in(page, "admin-token"))
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Sign in").click(force=True)
    assert held.count() == 1
    held.release()
    page.wait_for_selector(".tile")


def test_a_viewer_whose_session_has_ended_signs_in_again_and_is_back_on_the_page(open_page, address):
    page = open_page(address)
    page.wait_for_url("**/sign-in")
    sign_in(page, "admin-token")
    page.wait_for_selector(".tile")
    page.context.clear_cookies()
    page.evaluate("location.hash = '#/claims?namespace=team-b'")
    page.locator("main").get_by_role("link", name="Sign in again").click()
    page.wait_for_url("**/sign-in#/claims?namespace=team-b")
    sign_in(page, "admin-token")
    page.wait_for_selector('.claim:has-text("theirs")')


def test_a_sign_out_that_fails_is_not_taken_for_one(open_page, address):
    page = open_page(address)
    page.wait_for_url("**/sign-in")
    sign_in(page, "admin-token")
    page.wait_for_selector(".tile")
    page.route("**/sign-out", lambda route: route.abort())
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector('.notice:has-text("You are still signed in")')
    page.unroute("**/sign-out")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")


class OtherApplication(BaseHTTPRequestHandler):
    """Another application on localhost, such as a second port-forward: it keeps the cookies that browsers send it."""

    cookies: ClassVar[list[str]] = []

    def do_GET(self):
        self.cookies.append(self.headers.get("cookie", ""))
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>another</title>")

    def log_message(self, *_):
        """Print nothing."""


def test_another_port_of_localhost_gets_nothing_that_it_could_use(open_page, address):
    page = open_page(address)
    page.wait_for_url("**/sign-in")
    sign_in(page, "admin-token")
    page.wait_for_selector(".tile")
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherApplication) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        another = page.context.new_page()
        another.goto(f"http://localhost:{http.server_address[1]}/")
        [sent] = {one for one in OtherApplication.cookies if "dra-console" in one}
        assert "token" not in sent
        answer = another.evaluate(
            "address => fetch(address, {mode: 'no-cors', credentials: 'include'}).then((one) => one.type, () => null)",
            f"{address}/api/v1/summary",
        )
        assert answer is None
        http.shutdown()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    again = page.request.get(f"{address}/api/v1/offers", headers={"cookie": sent})
    assert again.status == 401, "the cookie was worth something after its viewer had signed out"
