"""What has happened to a pod, a claim or a device: conditions and Events, as far as the viewer's own rights reach."""

from __future__ import annotations

import jsonschema
import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import EVENTS
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import add_event, add_pod, fill
from tests.support.console.process import running_console
from tests.support.console.server import running_server
from tests.support.waiting import until

REFUSED = "prepare of claim mine: claim.config: device gpu-a has no shares"


def valid(reply):
    assert reply.status == 200, reply.body
    jsonschema.validate(reply.json, schema_of(DocumentKind.HISTORY))
    return reply.json


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with EmbeddedApi() as api:
        fill(api)
        add_pod(api, "team-a", "user", "mine")
        add_event(api, "Pod/team-a/user", "FailedPrepareDynamicResources", REFUSED)
        add_event(api, "Pod/team-a/user", "Scheduled", "assigned to n1", time="2026-11-28T08:00:00Z")
        add_event(api, "Pod/team-a/other", "Scheduled", "of another pod")
        add_event(api, "Node/default/n1", "RemediationReset", "device gpu-a: stage reset, attempt 1")
        add_event(api, "Node/default/n1", "DeviceFault", "GPU 0000:1b:00.0: the GPU is lost")
        add_event(api, "Node/default/n1", "DeviceFault", "GPU 0000:2b:00.0: the GPU is lost")
        add_event(api, "Node/default/n1", "Rebooted", "the node came back")
        path = api.write_kubeconfig(tmp_path_factory.mktemp("history") / "kubeconfig")
        with running_console("--kubeconfig", str(path)) as running:
            running.ready()
            yield running


def test_a_refused_prepare_is_shown_in_the_kubelets_words_the_newest_event_first(console):
    found = valid(console.ask("history", "?kind=pod&namespace=team-a&name=user"))
    assert [one["reason"] for one in found["events"]] == ["FailedPrepareDynamicResources", "Scheduled"]
    assert found["events"][0]["message"] == REFUSED
    assert found["events"][0]["warning"]
    assert (found["phase"], found["eventsKnown"]) == ("Pending", True)


def test_the_history_of_a_device_has_the_events_of_its_node_that_name_it(console):
    found = valid(console.ask("history", "?kind=node&name=n1&device=gpu-a"))
    assert [one["message"] for one in found["events"]] == ["device gpu-a: stage reset, attempt 1"]


def test_a_fault_that_is_reported_by_the_address_of_its_gpu_belongs_to_the_device(console):
    found = valid(console.ask("history", "?kind=node&name=n1&device=gpu-0000-1b-00-0"))
    assert [one["reason"] for one in found["events"]] == ["DeviceFault"]


@pytest.mark.parametrize(
    "query",
    [
        *("?kind=secret&namespace=team-a&name=x", "?kind=pod&namespace=team-a&name=..%2F..%2Fsecrets"),
        *("?kind=pod&name=user", "?kind=pod&namespace=a%2Fb&name=user"),
        *("?kind=node&name=n1&device=A,b", "?kind=node&name=n1,involvedObject.name%3Dx"),
    ],
)
def test_only_names_of_pods_claims_and_nodes_are_asked_for(console, query):
    reply = console.ask("history", query)
    assert (reply.status, reply.json["error"]["code"]) == (422, "input.question")


def test_events_of_any_shape_are_texts_of_bounded_length(tmp_path):
    with EmbeddedApi() as api:
        fill(api)
        wire = {"metadata": {"generateName": "e-"}, "involvedObject": {"kind": "Pod", "name": "user"}}
        wire |= {"reason": {"a": 1}, "message": "m" * 5_000, "series": [], "source": "x", "lastTimestamp": 7}
        add_pod(api, "team-a", "user", "mine")
        api.request("POST", EVENTS.path("team-a"), body=wire)
        with running_console("--kubeconfig", str(api.write_kubeconfig(tmp_path / "kubeconfig"))) as console:
            console.ready()
            [event] = valid(console.ask("history", "?kind=pod&namespace=team-a&name=user"))["events"]
    assert event == {"time": None, "warning": False, "reason": "", "message": "m" * 1_000, "from": ""}


def test_the_api_server_judges_what_a_viewer_may_know(tmp_path):
    with GuardedApi() as api:
        fill(api)
        add_pod(api, "team-a", "user", "mine")
        add_event(api, "Pod/team-a/user", "Failed", "for team a only")
        own = [(one, "team-a") for one in ("pods", "resourceclaims")]
        api.add("a-token", "a", *own, ("events", "team-a"), ("resourceslices", ""))
        api.add("quiet-token", "quiet", *own, ("resourceslices", ""))
        api.add("b-token", "b", ("resourceclaims", "team-b"), ("resourceslices", ""))
        path, query = api.write_kubeconfig(tmp_path / "kubeconfig"), "?kind=pod&namespace=team-a&name=user"
        with running_server(str(path), "--namespace", "team-a", "--namespace", "team-b") as server:
            until(lambda: server.ask("a-token", "summary").status == 200)
            assert [one["reason"] for one in valid(server.ask("a-token", "history", query))["events"]] == ["Failed"]
            until(lambda: server.ask("quiet-token", "summary").status == 200)
            found = valid(server.ask("quiet-token", "history", query))
            assert (found["events"], found["eventsKnown"]) == ([], False)
            until(lambda: server.ask("b-token", "summary").status == 200)
            assert b"for team a only" not in (reply := server.ask("b-token", "history", query)).body
            assert reply.status != 200


def test_a_console_that_reads_with_its_own_token_shows_no_events(tmp_path):
    with GuardedApi() as api:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        with running_server(str(path), "--identity", "review") as server:
            until(lambda: server.ask("admin-token", "summary").status == 200)
            assert server.ask("admin-token", "history", "?kind=node&name=n1").status == 404
