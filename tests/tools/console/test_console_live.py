"""The console on a live cluster: it shows what the viewer may read, follows changes, and only reads."""

from __future__ import annotations

import re
from contextlib import contextmanager

import jsonschema
import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.console.cluster import add_claim, add_pod, fill, taint
from tests.support.console.process import running_console
from tests.support.ports import free_port
from tests.support.waiting import until

SECRET = "hunter2-in-the-environment"


@contextmanager
def filled(folder):
    api = EmbeddedApi()
    api.start(free_port())
    try:
        fill(api)
        add_pod(api, "team-a", "user", "mine", SECRET)
        add_pod(api, "team-a", "asks", "waiting", SECRET)
        path = api.write_kubeconfig(folder / "kubeconfig")
        path.write_text(path.read_text().replace('"user": "embedded"', '"user": "embedded", "namespace": "team-a"'))
        yield api, str(path)
    finally:
        api.stop()


@pytest.fixture
def cluster(tmp_path):
    with filled(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def unchanging(tmp_path_factory):
    """Return a cluster that no test changes, with a console that has read it."""
    with filled(tmp_path_factory.mktemp("cluster")) as (api, kubeconfig), console_on(kubeconfig) as console:
        until(lambda: len(names(console)) == 4)
        yield api, console


@contextmanager
def console_on(kubeconfig):
    with running_console("--kubeconfig", kubeconfig) as console:
        console.ready()
        with console.looked_at():
            yield console


def names(console, query=""):
    found = console.ask("claims", query).json
    jsonschema.validate(found, schema_of(DocumentKind.CLAIMS_PAGE))
    return [(row["subject"], row["state"], row["name"]) for row in found["rows"]]


def test_waiting_claims_come_first_and_changes_are_followed(cluster):
    api, kubeconfig = cluster
    with console_on(kubeconfig) as console:
        until(lambda: len(names(console)) == 4)
        assert names(console)[0][:2] == ("pod", "pending")
        assert names(console)[-2:] == [("claim", "allocated", "mine"), ("claim", "allocated", "theirs")]
        add_claim(api, "team-b", "later")
        until(lambda: ("claim", "pending", "later") in names(console))
        api.delete(CLAIMS, "later", "team-b")
        until(lambda: ("claim", "pending", "later") not in names(console))
        taint(api, "gpu-b")
        until(lambda: console.ask("summary").json["states"]["tainted"] == 1)


def test_a_claim_that_waits_is_explained_and_one_that_is_allocated_is_shown_with_its_containers(unchanging):
    _, console = unchanging
    why = console.ask("explanation", "?kind=claim&namespace=team-a&name=waiting").json
    jsonschema.validate(why, schema_of(DocumentKind.EXPLANATION))
    assert "2 matching devices are held" in why["sentence"]
    found = console.ask("claim", "?namespace=team-a&name=mine").json
    jsonschema.validate(found, schema_of(DocumentKind.CLAIM_PAGE))
    assert [(one["pod"], one["container"]) for one in found["containers"]] == [("user", "main")]
    [held] = found["holds"]
    assert re.fullmatch(r"k8s\.gpu\.example\.com/claim=[0-9a-f-]+-gpu-a", held["cdiDevice"])
    assert console.ask("claim", "?namespace=team-a&name=nothing").status == 502


def test_only_get_requests_are_sent_no_secret_is_read_and_lists_come_by_pages(unchanging):
    api, console = unchanging
    console.ask("claim", "?namespace=team-a&name=mine")
    console.ask("explanation", "?kind=claim&namespace=team-a&name=waiting")
    sent = api.log.entries()
    assert {one.method for one in sent} == {"GET"}
    assert not [one for one in sent if "secret" in one.path]
    listed = [one for one in sent if one.path.endswith(("resourceslices", "resourceclaims", "pods", "nodes"))]
    assert all("limit" in one.query or "watch" in one.query for one in listed)
    assert all(
        one.query.get("fieldSelector") == "status.phase=Pending"
        for one in listed
        if one.path.endswith("/pods") and "watch" in one.query
    )


def test_no_answer_contains_the_environment_of_containers(unchanging):
    _, console = unchanging
    for reply in (
        console.ask("claims"),
        console.ask("claim", "?namespace=team-a&name=mine"),
        console.ask("explanation", "?kind=pod&namespace=team-a&name=asks"),
    ):
        assert reply.status == 200
        assert SECRET.encode() not in reply.body


def test_a_viewer_of_one_namespace_sees_that_one_and_what_is_not_shown(cluster):
    api, kubeconfig = cluster
    api.faults.fail_next(403, count=1000, method="GET", contains="v1/resourceclaims")
    with running_console("--kubeconfig", kubeconfig) as console:
        console.ready()
        with console.looked_at():
            until(lambda: [one["kind"] for one in console.ask("summary").json["unseen"]] == ["ResourceClaim"])
            until(lambda: "ResourceClaim" not in console.ask("summary").json["loading"])
            [unseen] = console.ask("summary").json["unseen"]
            assert (unseen["namespace"], unseen["partial"]) == ("team-a", True)
            assert "theirs" not in {name for _, _, name in names(console)}
            assert "mine" in {name for _, _, name in names(console)}


def test_an_api_server_that_was_away_is_followed_again(cluster):
    api, kubeconfig = cluster
    port = int(api.url.rpartition(":")[2])
    with console_on(kubeconfig) as console:
        api.stop()
        assert console.ask("summary").json["claims"] == 3, "what was read before is no longer shown"
        add_claim(api, "team-b", "meanwhile")
        api.start(port)
        until(lambda: console.ask("summary").json["claims"] == 4)


def test_nothing_is_read_from_the_cluster_before_a_page_is_open(cluster):
    api, kubeconfig = cluster
    api.log.clear()
    with running_console("--kubeconfig", kubeconfig) as console:
        console.ready()
        assert api.log.entries() == []


def test_credentials_that_can_not_be_used_are_an_error_of_the_command(tmp_path):
    import subprocess
    import sys

    command = [sys.executable, "-m", "dra_driver", "console", "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "kubeconfig" in done.stderr
