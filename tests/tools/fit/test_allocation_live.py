"""explain, simulate, slices and claims against an API server over HTTP."""

from __future__ import annotations

import json

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.kube.api import KubeApi
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.scheduler import EmbeddedScheduler, make_claims
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES
from dra_driver.tools.main import run
from tests.support.api.embedded_client import slice_wire

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}


@pytest.fixture
def cluster(tmp_path):
    api = EmbeddedApi()
    api.start()
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.request("POST", CLASSES.path(), body={"metadata": {"name": "any"}, "spec": {}})
    api.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "a"}]))
    api.request("POST", TEMPLATES.path("default"), body={"metadata": {"name": "t"}, "spec": {"spec": SPEC}})
    yield api, str(api.write_kubeconfig(tmp_path / "kubeconfig"))
    api.stop()


def pod(api, name):
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}], "containers": [{"name": "main"}]}
    made = api.request("POST", PODS.path("default"), body={"metadata": {"name": name}, "spec": spec})
    return make_claims(api, made)


def test_the_commands_show_what_is_in_the_cluster(cluster, capsys):
    api, kubeconfig = cluster
    first = pod(api, "first")
    assert run(["explain", "pod", "first", "--kubeconfig", kubeconfig]) == ExitCode.OK
    assert "fits on n1: " in capsys.readouterr().out
    EmbeddedScheduler(api, node="n1").schedule(first)
    pod(api, "second")
    assert run(["explain", "pod", "second", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.NO_MATCH
    assert (
        f"held by default/{api.items(CLAIMS)[0]['metadata']['name']}" in json.loads(capsys.readouterr().out)["sentence"]
    )
    assert run(["simulate", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.NO_MATCH
    [moment] = json.loads(capsys.readouterr().out)["moments"]
    assert [one["job"] for one in moment["waiting"]] == ["second"]
    run(["slices", "--kubeconfig", kubeconfig])
    assert "first" in capsys.readouterr().out
    run(["claims", "--kubeconfig", kubeconfig, "-o", "json"])
    assert len(json.loads(capsys.readouterr().out)["claims"]) == 2


def set_phase(api, name, phase, **status):
    wire = api.request("GET", PODS.path("default", name))
    wire["status"] = {**(wire.get("status") or {}), "phase": phase, **status}
    api.request("PUT", PODS.path("default", name) + "/status", body=wire)


def test_the_explanation_of_a_running_pod_names_the_devices_that_it_holds(cluster, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    set_phase(api, "first", "Running")
    assert run(["explain", "pod", "first", "--kubeconfig", kubeconfig]) == ExitCode.OK
    assert "runs on node n1 and holds a (claim default/first-gpu-" in " ".join(capsys.readouterr().out.split())
    claim = api.items(CLAIMS)[0]["metadata"]["name"]
    assert run(["explain", "claim", claim, "--kubeconfig", kubeconfig]) == ExitCode.OK
    assert "holds a" in capsys.readouterr().out


def test_the_explanation_of_a_pod_without_prepared_devices_names_node_device_and_event(cluster, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    event = {
        "metadata": {"name": "e1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "first", "namespace": "default"},
        "reason": "FailedPrepareDynamicResources",
        "message": "no such device",
        "source": {"component": "kubelet"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    api.request("POST", "/api/v1/namespaces/default/events", body=event)
    assert run(["explain", "pod", "first", "--kubeconfig", kubeconfig]) == ExitCode.NO_MATCH
    said = " ".join(capsys.readouterr().out.split())
    assert "node n1, which has not prepared its devices yet: a" in said
    assert "FailedPrepareDynamicResources: no such device" in said


def test_a_simulated_drain_evicts_running_pods(cluster, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    assert run(["simulate", "--drain", "n1", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.NO_MATCH
    moment = json.loads(capsys.readouterr().out)["moments"][0]
    assert moment["evicted"] == ["first"]
    assert "cordoned" in moment["waiting"][0]["reason"]
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}})
    api.request("POST", SLICES.path(), body=slice_wire("s2", node="n2", devices=[{"name": "b"}]))
    assert run(["simulate", "--drain", "n1", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.OK
    moment = json.loads(capsys.readouterr().out)["moments"][0]
    assert [(one["job"], one["node"], one["devices"]) for one in moment["placed"]] == [("first", "n2", ["b"])]


def test_gates_are_those_of_the_cluster_and_shown(tmp_path, capsys):
    api = EmbeddedApi(version="1.35", gates={"DRAPartitionableDevices": True})
    api.start()
    try:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        kubeconfig = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        assert run(["simulate", "--kubeconfig", kubeconfig]) == ExitCode.OK
        said = " ".join(capsys.readouterr().out.split())
        assert "DRAPartitionableDevices on (the API server keeps its fields)" in said
        assert run(["simulate", "--kubeconfig", kubeconfig, "--gate", "DRAPartitionableDevices=false"]) == ExitCode.OK
        assert "DRAPartitionableDevices off (--gate)" in " ".join(capsys.readouterr().out.split())
    finally:
        api.stop()


def test_in_use_takes_the_driver_and_the_cluster_from_the_environment(cluster, monkeypatch, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    [held] = api.items(CLAIMS)[0]["status"]["allocation"]["devices"]["results"]
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("DRIVER_NAME", held["driver"])
    assert run(["in-use"]) == ExitCode.NO_MATCH
    assert f"{held['pool']}/{held['device']}; used by pods first" in capsys.readouterr().out
    assert run(["in-use", "--driver-name", "other.example.com"]) == ExitCode.OK
    assert capsys.readouterr().out == "No claim holds a device of other.example.com.\n"


@pytest.mark.parametrize("command", [["slices"], ["cel", "test", "-e", "true"]])
def test_a_list_that_expires_while_it_is_read_is_continued_after_the_last_object(command, cluster, capsys, monkeypatch):
    """The server compacts after the first page; it answers 410 with a token, as real ones do."""
    api, kubeconfig = cluster
    for number in range(5):
        name = f"m{number}"
        api.request("POST", SLICES.path(), body=slice_wire(name, node=name, devices=[{"name": "a"}]))
    pages = []

    def request(self, method, path, **options):
        if method == "GET" and path == SLICES.path():
            options["query"] = {**options["query"], "limit": "2"}
            if len(pages) == 1:
                api.compact()
            pages.append(options["query"])
        return original(self, method, path, **options)

    original = KubeApi.request
    monkeypatch.setattr(KubeApi, "request", request)
    run([*command, "--kubeconfig", kubeconfig, "-o", "json"])
    out = capsys.readouterr().out
    assert len(pages) == 4, "three pages, and one refusal"
    assert all(f"m{number}" in out for number in range(5))
