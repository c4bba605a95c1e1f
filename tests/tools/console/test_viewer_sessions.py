"""Sessions of viewers: the token stays in the console, the cookie is worth nothing elsewhere, and sessions end."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import threading

import pytest
from starlette.datastructures import Headers

from dra_driver.tools.console.cluster_reader import Rights
from dra_driver.tools.console.sign_in import (
    IDLE_SECONDS,
    MAX_OF_USER,
    MAX_SESSIONS,
    WHOLE_SECONDS,
    AdmittedViewer,
    PresentedIdentity,
    ViewerSessions,
)
from dra_driver.tools.console.viewers import FRESH_SECONDS, Admissions, ViewerAuthorizer
from tests.support.api.certificates import make_ca, make_leaf
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.server import running_server
from tests.support.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with GuardedApi() as api:
        fill(api)
        for token, user in (("admin-token", "admin"), ("other-token", "other")):
            api.add(token, user, *((one, "") for one in EVERYTHING))
        yield str(api.write_kubeconfig(tmp_path_factory.mktemp("kube") / "config"))


@pytest.fixture(scope="module")
def server(cluster):
    with running_server(cluster) as found:
        yield found


def sign_in(server, token, **headers):
    """Sign in; return the name=value of the cookie, and its flags."""
    origin = f"{'https' if server.tls else 'http'}://localhost:{server.port}"
    reply = server.send("POST", "/sign-in", {"token": token}, origin=origin, **headers)
    assert reply.status == 204, reply.body
    cookie, *flags = reply.headers["set-cookie"].split("; ")
    return cookie, {flag.lower() for flag in flags}


def status_of(server, cookie):
    return server.send("GET", "/api/v1/offers", cookie=cookie).status


def test_the_cookie_is_a_random_name_that_is_no_token_and_differs_each_time(server):
    names = {sign_in(server, "admin-token")[0].partition("=")[2] for _ in range(3)}
    assert len(names) == 3
    for name in names:
        assert len(name) >= 43
        assert "admin" not in name
        assert server.ask(name, "offers").status == 401
    assert status_of(server, "dra-console=admin-token") == 401, "a token in the cookie was accepted"


def test_a_session_ends_on_the_server_when_its_viewer_signs_out(server):
    cookie, _ = sign_in(server, "admin-token")
    other, _ = sign_in(server, "admin-token")
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    line.request("GET", "/api/v1/events", headers={"host": f"localhost:{server.port}", "cookie": cookie})
    stream = line.getresponse()
    assert stream.status == 200
    ended = threading.Thread(target=stream.read, daemon=True)
    ended.start()
    assert server.send("POST", "/sign-out", {}, cookie=cookie).status == 403, "another site could sign viewers out"
    assert status_of(server, cookie) == 200
    origin = f"http://localhost:{server.port}"
    assert server.send("POST", "/sign-out", {}, origin=origin, cookie=cookie).status == 204
    assert status_of(server, cookie) == 401
    assert status_of(server, other) == 200, "a session in another browser has ended too"
    until(lambda: not ended.is_alive(), "the end of the stream", timeout_s=30.0)


def test_a_session_ends_when_its_browser_signs_in_with_another_token(server):
    cookie, _ = sign_in(server, "admin-token")
    newer, _ = sign_in(server, "other-token", cookie=cookie)
    assert (status_of(server, cookie), status_of(server, newer)) == (401, 200)


@pytest.mark.parametrize("headers", [
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site"},
    {"origin": "http://localhost:3000"},
    {"host": "localhost:3000", "origin": "http://localhost:8080"},
], ids=str)  # fmt: skip
def test_a_page_on_another_port_of_localhost_can_not_use_the_cookie(server, headers):
    cookie, _ = sign_in(server, "admin-token")
    assert server.send("GET", "/api/v1/offers", cookie=cookie, **headers).status == 403


def test_with_tls_the_cookie_is_bound_to_the_host_and_to_tls(cluster, tmp_path):
    ours, folder = make_ca(tmp_path, "ours"), tmp_path / "tls"
    certificate, key = make_leaf(tmp_path, "console", "ours")
    folder.mkdir()
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    context = ssl.create_default_context(cafile=str(ours))
    with running_server(cluster, "--tls-dir", str(folder), tls=context) as server:
        cookie, flags = sign_in(server, "admin-token")
        assert cookie.startswith("__Host-")
        assert flags == {"httponly", "secure", "samesite=strict", "path=/"}
        assert status_of(server, cookie) == 200


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def begun(sessions, token, user):
    return f"c={sessions.begin(PresentedIdentity(token), user)}"


@pytest.mark.parametrize(("step", "lasts"), [(IDLE_SECONDS - 1, WHOLE_SECONDS), (IDLE_SECONDS + 1, 0)])
def test_a_session_ends_when_it_is_not_used_and_after_some_hours_however_much_it_is_used(step, lasts):
    clock = Clock()
    sessions = ViewerSessions("c", clock)
    cookie, began = begun(sessions, "a", "alice"), clock.now
    clock.now += step
    while sessions.identity(cookie) is not None and clock.now - began < 10 * lasts:
        clock.now += step
    assert lasts <= clock.now - began <= lasts + step
    assert len(sessions) == 0


def test_one_user_can_not_have_more_than_some_sessions_and_the_one_unused_for_longest_ends():
    clock = Clock()
    sessions = ViewerSessions("c", clock)
    other = begun(sessions, "b", "bob")
    mine = []
    for number in range(MAX_OF_USER + 1):
        clock.now += 1
        mine.append(begun(sessions, f"a{number}", "alice"))
        sessions.identity(mine[0])
    assert [sessions.identity(one) is not None for one in mine] == [True, False] + [True] * (MAX_OF_USER - 1)
    assert sessions.identity(other) is not None


def test_the_accounts_of_one_namespace_can_not_end_the_sessions_of_others():
    clock = Clock()
    sessions = ViewerSessions("c", clock)
    first = begun(sessions, "b", "bob")
    for number in range(2 * MAX_SESSIONS):
        clock.now += 0.1
        begun(sessions, f"a{number}", f"system:serviceaccount:team-a:{number}")
    assert len(sessions) == MAX_SESSIONS
    assert sessions.identity(first) is not None


def test_a_session_ends_when_the_cluster_no_longer_accepts_its_token():
    class Resolver:
        accepts = True

        def resolve(self, one):
            return AdmittedViewer(one.digest, Rights(), None, user="alice") if self.accepts else None

    class NoBackends:
        def of(self, _admitted):
            return "backend"

    async def visit():
        clock, resolver = Clock(), Resolver()
        sessions, admissions = ViewerSessions("c", clock), Admissions(resolver, clock)
        authorizer = ViewerAuthorizer(frozenset(), sessions, None, admissions, NoBackends())
        headers = Headers({"host": "localhost", "cookie": begun(sessions, "a", "alice")})

        async def status():
            refused = await authorizer.refusal({"method": "GET", "path": "/api/v1/offers"}, headers)
            return refused.status_code if refused else 200

        assert await status() == 200
        resolver.accepts = False
        clock.now += FRESH_SECONDS
        assert await status() == 401
        assert len(sessions) == 0
        resolver.accepts = True  # such as a token that is valid from a later time on
        clock.now += FRESH_SECONDS
        assert await status() == 401

    asyncio.run(visit())
