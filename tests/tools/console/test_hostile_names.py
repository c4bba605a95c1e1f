"""Names that a browser, a token or an object chooses: only what the API has as a name becomes part of a path."""

from __future__ import annotations

import base64
import json

import pytest

from dra_driver.simulator.store import CLAIMS
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import add_claim, add_pod, fill
from tests.support.console.server import running_server
from tests.support.waiting import until

ALL = [(one, "") for one in EVERYTHING]


class PathApi(GuardedApi):
    """An API server that keeps the paths of all requests."""

    def __init__(self):
        super().__init__()
        self.paths = []

    def _serve(self, request):
        self.paths.append(request.path)
        return super()._serve(request)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with PathApi() as api:
        fill(api)
        add_pod(api, "team-a", "user", "mine")
        api.add("admin-token", "admin", *ALL)
        kubeconfig = str(api.write_kubeconfig(tmp_path_factory.mktemp("kube") / "config"))
        with running_server(kubeconfig) as server, server.looked_at(authorization="Bearer admin-token"):
            until(lambda: server.claims("admin-token") >= {"mine"})
            yield api, server


NO_NAMESPACES = ["..", ".", "team-a/../team-b", "%2e%2e", "team-a%2F", "Team", "a%20b", "", "x" * 64]
NO_NAMES = ["..", "../../pods/user", "%2e%2e%2fpods", "mine?x=1", "mine%23", "", "x" * 254]


@pytest.mark.parametrize(
    ("namespace", "name"), [*((one, "mine") for one in NO_NAMESPACES), *(("team-a", one) for one in NO_NAMES)]
)
def test_a_text_that_is_no_name_is_not_sent_to_the_api_server(running, namespace, name):
    api, server = running
    before = len(api.paths)
    reply = server.ask("admin-token", "claim", f"?namespace={namespace}&name={name}")
    assert reply.status == 422
    asked = [path for path in api.paths[before:] if "/resourceclaims/" in path or "/pods/" in path]
    assert asked == []


def test_the_names_of_pods_in_a_claim_are_checked_as_well(running):
    api, server = running
    add_claim(api, "team-a", "odd", "gpu-a", pods=["user", "../secrets/x", "..", "x/../../y", "Ü"])
    until(lambda: "odd" in server.claims("admin-token"))
    before = len(api.paths)
    assert server.ask("admin-token", "claim", "?namespace=team-a&name=odd").status == 200
    pods = [path.rpartition("/pods/")[2] for path in api.paths[before:] if "/pods/" in path]
    assert pods == ["user"]
    api.delete(CLAIMS, "odd", "team-a")


def test_the_namespace_in_a_token_is_not_tried_if_it_is_no_name(tmp_path):
    body = json.dumps({"sub": "system:serviceaccount:../../..:x"}).encode()
    token = f"a.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.b"
    with PathApi() as api:
        fill(api)
        api.add(token, "system:serviceaccount:x:x", ("resourceslices", ""), ("resourceclaims", "../../.."))
        with running_server(str(api.write_kubeconfig(tmp_path / "config"))) as server:
            with server.looked_at(authorization=f"Bearer {token}"):
                until(lambda: server.ask(token, "summary").status == 200)
            assert [path for path in api.paths if ".." in path] == []
