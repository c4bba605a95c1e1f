"""One console for several viewers at the same time: each sees what their own rights permit."""

from __future__ import annotations

import ssl
from contextlib import contextmanager

import pytest

from dra_driver.simulator.store import CLAIMS
from tests.support.api.certificates import make_ca, make_leaf
from tests.support.api.guarded_api import EVERYTHING, NAMESPACED, GuardedApi
from tests.support.console.cluster import add_claim, add_pod, fill
from tests.support.console.server import running_server
from tests.support.waiting import until

ALL = [(one, "") for one in EVERYTHING]
TEAM = [("resourceslices", ""), ("deviceclasses", ""), *((one, "team-a") for one in NAMESPACED)]


@contextmanager
def filled_cluster(folder):
    """Serve a cluster of two teams; yield its API and the path of a kubeconfig for it, in the folder."""
    with GuardedApi() as api:
        fill(api)
        add_pod(api, "team-a", "user", "mine")
        add_pod(api, "team-b", "other", "theirs")
        api.add("admin-token", "admin", *ALL)
        api.add("team-token", "team", *TEAM)
        api.add("friend-token", "friend", *TEAM)
        yield api, str(api.write_kubeconfig(folder / "config"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with filled_cluster(tmp_path_factory.mktemp("kube")) as found:
        yield found


@pytest.fixture(scope="module", params=["token", "review"])
def server(cluster, request):
    words = ("--identity", request.param, "--namespace", "team-a", "--namespace", "team-b")
    with running_server(cluster[1], *words) as found:
        yield found


def test_two_viewers_with_different_rights_see_different_things_at_the_same_time(cluster, server):
    api, _ = cluster
    with (
        server.looked_at(authorization="Bearer admin-token"),
        server.looked_at(authorization="Bearer team-token"),
    ):
        until(lambda: server.claims("admin-token") == {"mine", "theirs", "waiting"})
        until(lambda: server.claims("team-token") == {"mine", "waiting"})
        add_claim(api, "team-b", "later")
        until(lambda: "later" in server.claims("admin-token"))
        assert server.claims("team-token") == {"mine", "waiting"}
        for name, query in (
            ("claim", "?namespace=team-b&name=theirs"),
            ("explanation", "?kind=claim&namespace=team-b&name=theirs"),
            ("explanation", "?kind=pod&namespace=team-b&name=other"),
        ):
            assert server.ask("team-token", name, query).status in {422, 502}, name
            assert b"gpu-b" not in server.ask("team-token", name, query).body
        seen = server.ask(
            "team-token", "device", "?node=n1&driver=gpu.example.com&pool=n1/gpu.example.com&device=gpu-b"
        ).json
        assert seen["holders"] == [], "the viewer sees the holder of a device in another namespace"
        unseen = {one["kind"]: one["partial"] for one in server.ask("team-token", "summary").json["unseen"]}
        assert unseen == {"Node": False, "ResourceClaim": True, "ResourceClaimTemplate": True, "Pod": True}
        assert server.ask("admin-token", "summary").json["unseen"] == []
        api.delete(CLAIMS, "later", "team-b")


def test_a_request_without_a_valid_identity_gets_nothing_of_the_cluster(server):
    for name in ("summary", "fleet", "claims", "events", "attention"):
        assert server.send("GET", f"/api/v1/{name}").status == 401
        assert server.ask("no-such-token", name).status == 401
        assert server.send("GET", f"/api/v1/{name}", x_remote_user="admin").status == 401
    assert server.send("GET", "/").headers["location"] == "/sign-in"
    assert server.send("GET", "/sign-in").status == 200


def test_a_token_that_the_cluster_accepts_becomes_a_cookie_that_scripts_do_not_get(server):
    origin = f"http://localhost:{server.port}"
    assert server.send("POST", "/sign-in", {"token": "no-such-token"}, origin=origin).status == 401
    assert server.send("POST", "/sign-in", {"token": "bad token"}, origin=origin).status == 422
    assert server.send("POST", "/sign-in", {"token": "team-token"}, origin="http://evil.example").status == 403
    entered = server.send("POST", "/sign-in", {"token": "team-token"}, origin=origin)
    cookie, *flags = entered.headers["set-cookie"].split("; ")
    assert entered.status == 204
    assert {"httponly", "samesite=strict", "path=/"} <= {one.lower() for one in flags}
    until(lambda: server.send("GET", "/api/v1/summary", cookie=cookie).status == 200)
    assert b'"signed-in" content="yes"' in server.send("GET", "/", cookie=cookie).body
    assert 'dra-console=""' in server.send("POST", "/sign-out", {}, origin=origin, cookie=cookie).headers["set-cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "localhost.evil.example:80"},
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site"},
    ],
    ids=str,
)
def test_a_request_of_another_site_is_refused_even_with_a_token(server, headers):
    assert server.send("GET", "/api/v1/summary", authorization="Bearer admin-token", **headers).status == 403


def test_the_console_sends_all_requests_with_the_viewers_tokens_by_default(cluster):
    api, kubeconfig = cluster
    with running_server(kubeconfig, "--namespace", "team-a") as server:
        api.seen.clear()
        with server.looked_at(authorization="Bearer team-token"):
            until(lambda: server.claims("team-token") == {"mine", "waiting"})
            server.ask("team-token", "claim", "?namespace=team-a&name=mine")
        assert api.seen == {"team"}


def test_viewers_with_equal_rights_share_one_reader(tmp_path):
    with (
        filled_cluster(tmp_path) as (api, kubeconfig),  # of its own, because watches of other servers may end late
        running_server(kubeconfig, "--identity", "review") as server,
        server.looked_at(authorization="Bearer team-token"),
    ):
        until(lambda: server.claims("team-token") == {"mine", "waiting"})
        until(lambda: api.open_watches == 5)
        with server.looked_at(authorization="Bearer friend-token"):
            until(lambda: server.claims("friend-token") == {"mine", "waiting"})
            assert api.open_watches == 5


def test_a_name_in_a_header_is_accepted_only_from_the_proxy_with_the_right_certificate(cluster, tmp_path):
    ours, folder = make_ca(tmp_path, "ours"), tmp_path / "tls"
    certificate, key = make_leaf(tmp_path, "console", "ours")
    folder.mkdir()
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    make_ca(tmp_path, "others")
    context = ssl.create_default_context(cafile=str(ours))
    words = ("--tls-dir", str(folder), "--identity", "review", "--proxy-ca", str(ours), "--proxy-name", "front")
    with running_server(cluster[1], *words, tls=context) as server:
        for name, authority in (("front", "ours"), ("somebody", "ours"), ("forged", "others")):
            server.client[name] = ssl.create_default_context(cafile=str(ours))
            server.client[name].load_cert_chain(*make_leaf(tmp_path, name, authority))

        def asked(certificate: str, **headers: str) -> int:
            return server.send("GET", "/api/v1/summary", certificate=certificate, **headers).status

        until(lambda: asked("front", x_remote_user="team") == 200)
        assert asked("front") == 401, "a request of the proxy without a name was accepted"
        assert asked("", x_remote_user="admin") == 401
        assert asked("somebody", x_remote_user="admin") == 401
        with pytest.raises(OSError, match=r"(?i)closed|reset|alert"):
            asked("forged", x_remote_user="admin")
        found = server.send("GET", "/api/v1/claims", certificate="front", x_remote_user="team")
        assert "theirs" not in found.body.decode()
        assert asked("", authorization="Bearer team-token") == 200, "a token without the proxy was refused"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--address", "0.0.0.0:0"], "others could read the tokens"),
        (["--proxy-ca", "ca.crt"], "must be set together"),
        (["--proxy-ca", "ca.crt", "--proxy-name", "front"], "needs --tls-dir"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_unsafe_options_are_refused(words, why, capsys):
    from dra_driver.tools.main import run

    assert run(["console-server", *words]) == 2
    assert why in capsys.readouterr().err
