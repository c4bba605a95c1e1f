"""claims, slices and explain for somebody who may read one namespace: what is seen is used, what is not is said."""

from __future__ import annotations

import pytest
import yaml

from dra_driver.cli.main import run
from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.model.errors import ExitCode
from tests.support.embedded_client import slice_wire

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
EVERYWHERE = {
    "nodes": "/api/v1/nodes",
    "slices": "v1/resourceslices",
    "classes": "v1/deviceclasses",
    "claims": "v1/resourceclaims",
    "templates": "v1/resourceclaimtemplates",
    "pods": "/api/v1/pods",
}


def claim(api, namespace, name, device=""):
    metadata = {"name": name, "labels": {"app": name}}
    made = api.request("POST", CLAIMS.path(namespace), body={"metadata": metadata, "spec": SPEC})
    if device:
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1/gpu.example.com", "device": device}
        made["status"] = {"allocation": {"devices": {"results": [result]}}}
        api.request("PUT", f"{CLAIMS.path(namespace, name)}/status", body=made)


@pytest.fixture
def cluster(tmp_path):
    api = EmbeddedApi()
    api.start()
    for name in ("team-a", "team-b"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.request("POST", CLASSES.path(), body={"metadata": {"name": "any"}, "spec": {}})
    api.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "a"}, {"name": "b"}]))
    claim(api, "team-a", "mine", "a")
    claim(api, "team-a", "waiting")
    claim(api, "team-b", "theirs", "b")
    path = api.write_kubeconfig(tmp_path / "kubeconfig")
    config = yaml.safe_load(path.read_text())
    first = config["contexts"][0]
    config["contexts"].append({"name": "a", "context": {**first["context"], "namespace": "team-a"}})
    path.write_text(yaml.safe_dump(config))
    yield api, str(path)
    api.stop()


def refuse(api, *kinds):
    for kind in kinds:
        api.troubles.fail_next(403, count=1000, method="GET", contains=EVERYWHERE[kind])


def answer(capsys, *words):
    status = run(list(words))
    out, err = capsys.readouterr()
    return status, " ".join(out.split()), " ".join(err.split())


def test_the_namespace_is_that_of_the_context_and_all_of_them_with_a(cluster, capsys):
    _, kubeconfig = cluster
    to = ("--kubeconfig", kubeconfig)
    _, out, _ = answer(capsys, "claims", *to, "--context", "a")
    assert "team-a/mine" in out
    assert "team-b/theirs" not in out
    _, out, _ = answer(capsys, "claims", *to)
    assert "team-a" not in out
    _, out, _ = answer(capsys, "claims", *to, "-A")
    assert "team-a/mine" in out
    assert "team-b/theirs" in out
    _, out, _ = answer(capsys, "claims", *to, "-n", "team-a", "-l", "app in (waiting)")
    assert "team-a/waiting" in out
    assert "team-a/mine" not in out
    assert run(["claims", *to, "-A", "-n", "team-a"]) == ExitCode.USAGE
    assert run(["claims", *to, "-l", "a b"]) == ExitCode.USAGE


def test_claims_of_the_namespace_are_shown_without_rights_beyond_it(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, *EVERYWHERE)
    status, out, err = answer(capsys, "claims", "--kubeconfig", kubeconfig, "-n", "team-a")
    assert status == ExitCode.ENVIRONMENT
    assert "team-a/mine" in out
    assert "not published" not in out  # nobody could look
    assert "could not be seen: ResourceSlices (bind ClusterRole dra-driver-viewer)" in err
    assert "ServiceAccount" not in err


def test_slices_say_whose_claims_they_do_not_know(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, "claims", "pods")
    status, out, err = answer(capsys, "slices", "--kubeconfig", kubeconfig, "-n", "team-a")
    assert status == ExitCode.ENVIRONMENT
    assert "mine" in out
    assert "theirs" not in out
    assert "ResourceClaims of other namespaces than team-a (bind ClusterRole view for all of them)" in err


def test_nothing_is_judged_without_slices_or_classes(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, *EVERYWHERE)
    explain = ("explain", "claim", "waiting", "--kubeconfig", kubeconfig, "-n", "team-a")
    status, out, err = answer(capsys, *explain)
    assert status == ExitCode.ENVIRONMENT
    assert "it is not known whether claim team-a/waiting fits" in out
    assert "ResourceSlices and DeviceClasses may not be read (bind ClusterRole dra-driver-viewer)" in out
    assert "Nodes (bind ClusterRole dra-driver-viewer)" in err
    status, out, _ = answer(capsys, "explain", "claim", "mine", *explain[3:])
    assert (status, "holds a" in out) == (ExitCode.OK, True)


def test_a_fit_is_not_known_where_others_may_hold_the_device(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, "claims")
    explain = ("explain", "claim", "waiting", "--kubeconfig", kubeconfig, "-n", "team-a")
    status, out, err = answer(capsys, *explain)
    assert "fits on 1 of 1 node" in out
    assert status == ExitCode.ENVIRONMENT
    assert "other namespaces than team-a" in err
    claim(api, "team-a", "second", "b")
    status, out, _ = answer(capsys, *explain)  # whatever others hold, nothing is left
    assert status == ExitCode.NO_MATCH


def test_a_missing_template_is_not_called_missing_where_templates_may_not_be_read(cluster, capsys):
    api, kubeconfig = cluster
    spec = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}], "containers": [{"name": "main"}]}
    api.request("POST", PODS.path("team-a"), body={"metadata": {"name": "p"}, "spec": spec})
    api.troubles.fail_next(403, count=1000, method="GET", contains="resourceclaimtemplates")
    status, out, _ = answer(capsys, "explain", "pods", "--kubeconfig", kubeconfig, "-n", "team-a")
    assert status == ExitCode.ENVIRONMENT
    assert "needs ResourceClaimTemplate team-a/t, which may not be read" in out


def test_one_kind_is_explained_by_labels_and_in_all_namespaces(cluster, capsys):
    _, kubeconfig = cluster
    to = ("--kubeconfig", kubeconfig)
    _, out, _ = answer(capsys, "explain", "claims", "-A", *to)
    assert "team-a/mine" in out
    assert "team-b/theirs" in out
    _, out, _ = answer(capsys, "explain", "claims", "-n", "team-a", "-l", "app=mine", *to)
    assert "team-a/mine" in out
    assert "waiting" not in out
    assert run(["explain", "claim", "mine", "-A", *to]) == ExitCode.USAGE
