"""Signing in to a console in the cluster with a token, and signing out."""

from __future__ import annotations

import pytest

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
