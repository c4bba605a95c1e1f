"""explain, simulate, slices and claims against an API server over HTTP."""

from __future__ import annotations

import json

import pytest

from dra_driver.cli.main import run
from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.embedded.scheduling.pods import make_claims
from dra_driver.embedded.scheduling.scheduler import EmbeddedScheduler
from dra_driver.model.errors import ExitCode
from tests.support.embedded_client import slice_wire

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


def test_the_commands_speak_of_the_cluster(cluster, capsys):
    api, kubeconfig = cluster
    first = pod(api, "first")
    assert run(["explain", "pod", "first", "--kubeconfig", kubeconfig]) == ExitCode.OK
    assert "fits on 1 of 1 nodes" in capsys.readouterr().out
    EmbeddedScheduler(api, node="n1").schedule(first)
    pod(api, "second")
    assert run(["explain", "pod", "second", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.NO_MATCH
    assert (
        f"held by default/{api.items(CLAIMS)[0]['metadata']['name']}" in json.loads(capsys.readouterr().out)["sentence"]
    )
    assert run(["simulate", "--kubeconfig", kubeconfig, "-o", "json"]) == ExitCode.NO_MATCH
    [moment] = json.loads(capsys.readouterr().out)
    assert [one["job"] for one in moment["waiting"]] == ["second"]
    run(["slices", "--kubeconfig", kubeconfig])
    assert "first" in capsys.readouterr().out
    run(["claims", "--kubeconfig", kubeconfig, "-o", "json"])
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_a_pod_that_has_all_it_wants_is_told_so(cluster, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    assert run(["explain", "pod", "first", "--kubeconfig", kubeconfig]) == ExitCode.BAD_INPUT
    assert "its claims are allocated" in capsys.readouterr().err


def test_in_use_takes_its_driver_and_its_cluster_from_the_environment_too(cluster, monkeypatch, capsys):
    api, kubeconfig = cluster
    EmbeddedScheduler(api, node="n1").schedule(pod(api, "first"))
    [held] = api.items(CLAIMS)[0]["status"]["allocation"]["devices"]["results"]
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("DRIVER_NAME", held["driver"])
    assert run(["in-use"]) == ExitCode.NO_MATCH
    assert f"{held['pool']}/{held['device']}; used by pods first" in capsys.readouterr().out
    assert run(["in-use", "--driver-name", "other.example.com"]) == ExitCode.OK
    assert capsys.readouterr().out == "No claim holds a device of other.example.com.\n"
