"""`explain -f` and `simulate -f` with a kubeconfig: manifests are judged on the cluster, with its version and gates."""

from __future__ import annotations

import json

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.tools.main import run
from tests.support.api.embedded_client import slice_wire

RESOURCE = "example.com/gpu"
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}


@pytest.fixture
def cluster(tmp_path):
    with EmbeddedApi(version="1.35", gates={"DRAExtendedResource": True}) as api:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        device_class = {"metadata": {"name": "any"}, "spec": {"extendedResourceName": RESOURCE}}
        api.request("POST", CLASSES.path(), body=device_class)
        api.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "a"}]))
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        config = yaml.safe_load(path.read_text())
        config["contexts"][0]["context"]["namespace"] = "team-a"
        path.write_text(yaml.safe_dump(config))
        yield api, path


def hold(api, name="theirs"):
    claim = api.request("POST", CLAIMS.path("team-a"), body={"metadata": {"name": name}, "spec": SPEC})
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1/gpu.example.com", "device": "a"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    api.request("PUT", f"{CLAIMS.path('team-a', name)}/status", body=claim)


def manifest(tmp_path, *objects):
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def pod(limits=None, **spec):
    container = {"name": "main", "image": "x", **({"resources": {"limits": limits}} if limits else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": SPEC}


def answer(capsys, *words):
    status = run(list(words))
    out, err = capsys.readouterr()
    return status, " ".join(out.split()), err


def test_a_manifest_is_judged_on_the_clusters_devices_and_what_others_hold(cluster, capsys, tmp_path):
    api, kubeconfig = cluster
    file = manifest(tmp_path, CLAIM)
    words = ("-f", file, "--kubeconfig", str(kubeconfig))
    status, out, _ = answer(capsys, "explain", *words)
    assert "fits on n1" in out
    assert "(rules of Kubernetes 1.35; DRAExtendedResource on" in out
    assert status == ExitCode.OK
    status, out, _ = answer(capsys, "simulate", *words)
    assert "team-a/mine" in out
    assert status == ExitCode.OK
    hold(api)
    status, out, _ = answer(capsys, "explain", *words)
    assert "held by team-a/theirs" in out
    assert status == ExitCode.NO_MATCH
    status, _, _ = answer(capsys, "simulate", *words)
    assert status == ExitCode.NO_MATCH


def test_only_the_manifests_own_objects_are_explained_in_the_contexts_namespace(cluster, capsys, tmp_path):
    api, kubeconfig = cluster
    api.request("POST", CLAIMS.path("team-a"), body={"metadata": {"name": "waiting"}, "spec": SPEC})
    file = manifest(tmp_path, pod(resourceClaims=[{"name": "g", "resourceClaimName": "waiting"}]))
    status, out, _ = answer(capsys, "explain", "-f", file, "--kubeconfig", str(kubeconfig), "-o", "json")
    [found] = json.loads(out)["explanations"]
    assert found["subject"] == {"kind": "pod", "namespace": "team-a", "name": "p"}
    assert status == ExitCode.OK


def test_a_manifest_takes_the_place_of_the_object_of_its_name(cluster, capsys, tmp_path):
    api, kubeconfig = cluster
    hold(api, "mine")
    file = manifest(tmp_path, CLAIM)
    status, out, _ = answer(capsys, "explain", "-f", file, "--kubeconfig", str(kubeconfig))
    assert "fits on n1" in out
    assert status == ExitCode.OK


def test_a_dump_with_slices_is_judged_as_it_is_and_its_classes_show_the_gate(cluster, capsys, tmp_path):
    """A class that a server stored with the name of an extended resource shows that the gate is on."""
    api, kubeconfig = cluster
    found = [*api.items(SLICES), *api.items(CLASSES)]
    kinds = {SLICES.path(): "ResourceSlice", CLASSES.path(): "DeviceClass"}
    wires = [{"kind": kinds[SLICES.path()], **found[0]}, {"kind": kinds[CLASSES.path()], **found[1]}]
    wires = [{"apiVersion": "resource.k8s.io/v1", **one} for one in wires]
    file = manifest(tmp_path, *wires, pod({RESOURCE: 1}))
    kubeconfig.write_text("not a kubeconfig: [")
    status, out, _ = answer(capsys, "explain", "-f", file, "--kubeconfig", str(kubeconfig))
    assert "fits on n1" in out
    assert status == ExitCode.OK


def test_a_manifest_for_extended_resources_uses_the_servers_gate(cluster, capsys, tmp_path):
    _, kubeconfig = cluster
    file = manifest(tmp_path, pod({RESOURCE: 1}))
    status, out, _ = answer(capsys, "explain", "-f", file, "--kubeconfig", str(kubeconfig))
    assert "fits on n1" in out
    assert status == ExitCode.OK


def test_what_the_cluster_does_not_let_one_read_makes_the_verdict_unknown(cluster, capsys, tmp_path):
    api, kubeconfig = cluster
    api.faults.fail_next(403, count=100, method="GET", contains="resourceslices")
    file = manifest(tmp_path, CLAIM)
    status, out, _ = answer(capsys, "explain", "-f", file, "--kubeconfig", str(kubeconfig))
    assert "it is not known whether claim team-a/mine fits" in out
    assert status == ExitCode.ENVIRONMENT
    assert api.items(PODS) == []
