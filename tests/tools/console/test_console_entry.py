"""Who may send requests to the console: one browser, from the console's own pages, to its own address."""

import pytest

from tests.support.console.process import running_console


def test_the_address_works_once_and_its_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get():
    with running_console("--fleet", "demo-h100") as console:
        reply = console.enter()
        assert (reply.status, reply.headers["location"]) == (303, "/")
        flags = {one.strip().lower() for one in reply.headers["set-cookie"].split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/"} <= flags
        again = console.enter()
        assert again.status == 401
        assert "set-cookie" not in again.headers
        assert console.end() == 0


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/v1/summary", "/api/v1/events"])
def test_nothing_is_answered_without_the_cookie(console, path):
    assert console.send("GET", path).status == 401
    assert console.send("GET", path, cookie=f"dra-console-{console.port}=guessed").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:80"},
        {"host": "evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)
def test_a_request_of_another_site_is_refused_even_with_the_cookie(console, headers):
    assert console.send("GET", "/api/v1/summary", cookie=console.cookie, **headers).status == 403


def test_a_request_with_a_body_must_come_from_the_consoles_own_page(console):
    body = b'{"expression": "true"}'
    assert console.send("POST", "/api/v1/selector", body, cookie=console.cookie).status == 403
    answered = console.send("POST", "/api/v1/selector", body, cookie=console.cookie, origin=console.origin)
    assert answered.status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_other_than_get_and_post_are_refused(console, method):
    refused = console.send(method, "/api/v1/summary", cookie=console.cookie, origin=console.origin)
    assert refused.status == 405


def test_the_headers_of_every_answer_forbid_what_a_page_does_not_need(console):
    for path in ("/", "/static/app.js", "/api/v1/summary", "/nothing"):
        headers = console.send("GET", path, cookie=console.cookie).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "nonce" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "no-store" in headers["cache-control"]
        assert "server" not in headers


@pytest.mark.parametrize(
    "path", ["/static/../__init__.py", "/static/..%2f__init__.py", "/static//etc/passwd", "/static/"]
)
def test_no_file_but_those_of_the_pages_is_served(console, path):
    assert console.send("GET", path, cookie=console.cookie).status == 404
