"""claims, slices and explain for an account that may read one namespace: what it may not read is named."""

from __future__ import annotations

import json

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.kube import paths
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.tools.main import run
from dra_driver.tools.world.access import ClusterAccess, NoProgress
from tests.support.api.embedded_client import slice_wire

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
MISSING = "the right to list them is missing"
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
        api.faults.fail_next(403, count=1000, method="GET", contains=EVERYWHERE[kind])


def answer(capsys, *words):
    status = run(list(words))
    out, err = capsys.readouterr()
    return status, " ".join(out.split()), " ".join(err.split())


def test_the_namespace_is_that_of_the_context_and_dash_a_means_all_namespaces(cluster, capsys):
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
    assert "not published" not in out  # the slices could not be read
    assert "could not be seen: ResourceSlices and DeviceClasses (the right to list them is missing: bind" in err
    assert "ServiceAccount" not in err


def test_devices_that_claims_hold_are_not_faulty_where_slices_may_not_be_read(cluster, capsys):
    """Two drivers' pools of one node are drawn below one node, and nothing is called gone."""
    api, kubeconfig = cluster
    result = {"request": "gpu", "driver": "other.example.com", "pool": "n1", "device": "x"}
    made = api.request("GET", CLAIMS.path("team-a", "waiting"))
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    api.request("PUT", f"{CLAIMS.path('team-a', 'waiting')}/status", body=made)
    refuse(api, "slices")
    status, out, err = answer(capsys, "slices", "--kubeconfig", kubeconfig)
    assert status == ExitCode.ENVIRONMENT
    assert "The devices are not known, only which of them claims hold." in out
    assert out.count(" n1 ") == 1
    assert "team-a/mine" in out
    assert not {"gone", "faulty", "not published"} & set(out.replace(",", " ").split())
    assert err.count("ResourceSlices") == 1
    assert "the right to list them is missing" in err
    _, out, _ = answer(capsys, "slices", "--kubeconfig", kubeconfig, "-o", "json")
    assert json.loads(out)["figures"]["nodes"] == []


def test_the_schedulers_message_in_a_pod_is_told_where_slices_may_not_be_read(cluster, capsys):
    api, kubeconfig = cluster
    spec = {"resourceClaims": [{"name": "g", "resourceClaimName": "waiting"}], "containers": [{"name": "main"}]}
    pod = api.request("POST", PODS.path("team-a"), body={"metadata": {"name": "p"}, "spec": spec})
    message = "0/3 nodes are available: 3 cannot allocate all claims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    api.request("PUT", f"{PODS.path('team-a', 'p')}/status", body=pod)
    refuse(api, *EVERYWHERE)
    to = ("--kubeconfig", kubeconfig, "-n", "team-a")
    status, out, _ = answer(capsys, "explain", "pod", "p", *to)
    assert status == ExitCode.ENVIRONMENT
    assert f"the scheduler says: {message}" in out
    _, out, _ = answer(capsys, "claims", *to)
    assert f"p waits: {message}" in out


def test_slices_names_the_namespaces_whose_claims_may_not_be_read(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, "claims", "pods")
    status, out, err = answer(capsys, "slices", "--kubeconfig", kubeconfig, "-n", "team-a")
    assert status == ExitCode.ENVIRONMENT
    assert "mine" in out
    assert "theirs" not in out
    assert f"ResourceClaims and Pods of other namespaces than team-a ({MISSING}: bind ClusterRole view for all" in err


def test_explain_judges_nothing_without_slices_or_classes(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, *EVERYWHERE)
    explain = ("explain", "claim", "waiting", "--kubeconfig", kubeconfig, "-n", "team-a")
    status, out, err = answer(capsys, *explain)
    assert status == ExitCode.ENVIRONMENT
    assert "it is not known whether claim team-a/waiting fits" in out
    assert "ResourceSlices and DeviceClasses may not be read (bind ClusterRole dra-driver-viewer)" in out
    assert f"Nodes, ResourceSlices and DeviceClasses ({MISSING}: bind ClusterRole dra-driver-viewer)" in err
    status, out, _ = answer(capsys, "explain", "claim", "mine", *explain[3:])
    assert (status, "holds a" in out) == (ExitCode.OK, True)


def test_a_fit_is_not_certain_where_other_namespaces_may_hold_the_device(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, "claims")
    explain = ("explain", "claim", "waiting", "--kubeconfig", kubeconfig, "-n", "team-a")
    status, out, err = answer(capsys, *explain)
    assert "fits on n1: " in out
    assert status == ExitCode.ENVIRONMENT
    assert "other namespaces than team-a" in err
    claim(api, "team-a", "second", "b")
    status, out, _ = answer(capsys, *explain)  # whatever others hold, nothing is left
    assert status == ExitCode.NO_MATCH


def test_a_missing_template_is_not_called_missing_where_templates_may_not_be_read(cluster, capsys):
    api, kubeconfig = cluster
    spec = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}], "containers": [{"name": "main"}]}
    api.request("POST", PODS.path("team-a"), body={"metadata": {"name": "p"}, "spec": spec})
    api.faults.fail_next(403, count=1000, method="GET", contains="resourceclaimtemplates")
    status, out, _ = answer(capsys, "explain", "pods", "--kubeconfig", kubeconfig, "-n", "team-a")
    assert status == ExitCode.ENVIRONMENT
    assert "needs ResourceClaimTemplate team-a/t, which may not be read" in out


def test_objects_to_explain_may_be_chosen_by_labels_and_in_all_namespaces(cluster, capsys):
    _, kubeconfig = cluster
    to = ("--kubeconfig", kubeconfig)
    _, out, _ = answer(capsys, "explain", "claims", "-A", *to)
    assert "team-a/mine" in out
    assert "team-b/theirs" in out
    _, out, _ = answer(capsys, "explain", "claims", "-n", "team-a", "-l", "app=mine", *to)
    assert "team-a/mine" in out
    assert "waiting" not in out
    assert run(["explain", "claim", "mine", "-A", *to]) == ExitCode.USAGE


def test_in_use_lists_the_claims_that_may_be_read_and_names_what_may_not(cluster, capsys):
    api, kubeconfig = cluster
    use = ("in-use", "--driver-name", "gpu.example.com", "--kubeconfig", kubeconfig)
    _, out, _ = answer(capsys, *use)
    assert "team-a/mine" in out
    assert "team-b/theirs" in out
    status, out, _ = answer(capsys, *use, "-n", "team-b", "-l", "app=theirs")
    assert status == ExitCode.NO_MATCH
    assert "team-a/mine" not in out
    refuse(api, "claims")
    status, out, err = answer(capsys, *use, "--context", "a")
    assert status == ExitCode.NO_MATCH
    assert "team-a/mine" in out
    assert "ResourceClaims of other namespaces than team-a" in err
    status, out, _ = answer(capsys, *use, "-n", "default")
    assert status == ExitCode.OK
    status, out, _ = answer(capsys, *use[:2], "other.example.com", *use[3:])
    assert status == ExitCode.ENVIRONMENT, "others may hold its devices"
    assert "No claim that may be read holds a device" in out


def test_doctor_checks_the_namespace_that_may_be_read(cluster, capsys):
    api, kubeconfig = cluster
    doctor = ("doctor", "--only", "cluster", "--driver-name", "gpu.example.com", "--kubeconfig", kubeconfig)
    for one in api.items(SLICES):  # so that their devices are no longer published
        api.request("DELETE", f"{SLICES.path()}/{one['metadata']['name']}")
    _, out, _ = answer(capsys, *doctor)
    assert "team-b/theirs" in out
    _, out, _ = answer(capsys, *doctor, "-n", "team-a")
    assert "team-a/mine" in out
    assert "team-b/theirs" not in out
    assert run([*doctor, "-n", "team-a", "-A"]) == ExitCode.USAGE
    refuse(api, "claims", "pods", "templates")
    _, out, _ = answer(capsys, *doctor, "--context", "a")
    assert "team-a/mine" in out
    assert "claims of all namespaces" in out, "what could not be seen"


def test_cel_takes_a_context_and_migrate_a_context_or_a_namespace(cluster, capsys, tmp_path, monkeypatch):
    api, kubeconfig = cluster
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    status, out, _ = answer(capsys, "cel", "test", "-e", "device.driver == 'gpu.example.com'", "--context", "a")
    assert (status, "2 match, of 2 devices" in out) == (ExitCode.OK, True)
    refuse(api, "templates")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod["spec"] = {"containers": [{"name": "main", "image": "x", **limits}]}
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    _, out, err = answer(capsys, "migrate", str(path), "--context", "a")
    assert "ResourceClaimTemplate" in out
    assert "ResourceClaimTemplates of other namespaces than team-a" in err
    _, _, err = answer(capsys, "migrate", str(path), "--cluster", "-n", "team-a")
    assert "other namespaces" not in err


def test_no_command_reports_that_nothing_exists_where_nothing_may_be_read(cluster, capsys):
    api, kubeconfig = cluster
    refuse(api, *EVERYWHERE)
    for method in ("GET", "POST"):
        api.faults.fail_next(403, count=1000, method=method, contains="/namespaces/")
    to = ("--kubeconfig", kubeconfig)
    for words, said in (
        (("slices",), "The devices are not known"),
        (("claims",), "The claims are not known"),
        (("explain", "pods"), "nothing to explain"),
        (("simulate",), "what would happen is not known"),
        (("in-use",), "No claim that may be read"),
    ):
        status, out, err = answer(capsys, *words, *to)
        assert (status, said in out + err) == (ExitCode.ENVIRONMENT, True), words
        assert "DeviceClasss" not in err
        assert "0 nodes" not in out
    status, out, _ = answer(capsys, "doctor", "--only", "cluster", *to)
    assert out.count("this account may not read them") == 1, "one line for all that is refused"


def test_the_progress_of_a_list_names_its_kind_in_the_plural(cluster):
    _, kubeconfig = cluster
    nouns = []

    class Line(NoProgress):
        def __init__(self, noun, total=0):
            nouns.append(noun)

    access = ClusterAccess(kubeconfig)
    api = access.connect()
    try:
        access.read(api, "DeviceClass", paths.CLASSES, Line)
    finally:
        api.close()
    assert nouns == ["DeviceClasses read"]
