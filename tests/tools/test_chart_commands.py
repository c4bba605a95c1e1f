"""What the chart's Jobs run: pod-security before the agents start, uninstall-check (as in-use) before an uninstall."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from dra_driver.base.errors import ApiError, ExitCode
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, NAMESPACES, SECRETS
from dra_driver.tools.main import run
from dra_driver.tools.output import LABEL

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def cluster(tmp_path):
    api = EmbeddedApi()
    api.start()
    yield api, str(api.write_kubeconfig(tmp_path / "kubeconfig"))
    api.stop()


def make(api, name, **labels):
    api.request("POST", NAMESPACES.path(), body={"metadata": {"name": name, "labels": labels}})


def labels_of(api, name):
    return api.request("GET", f"{NAMESPACES.path()}/{name}")["metadata"]["labels"]


def test_a_namespace_without_a_level_gets_one_and_keeps_its_labels(cluster, capsys):
    api, kubeconfig = cluster
    make(api, "gpus", team="a")
    for said in ("now admits", "admits"):
        assert run(["pod-security", "--namespace", "gpus", "--kubeconfig", kubeconfig]) == ExitCode.OK
        assert f"Namespace gpus {said} privileged pods." in capsys.readouterr().out
        assert labels_of(api, "gpus").items() >= {LABEL: "privileged", "team": "a"}.items()


def test_a_level_that_an_administrator_chose_stays_and_the_command_to_change_it_is_printed(cluster, capsys):
    api, kubeconfig = cluster
    make(api, "strict", **{LABEL: "baseline"})
    assert run(["pod-security", "--namespace", "strict", "--kubeconfig", kubeconfig]) == ExitCode.NO_MATCH
    assert f"kubectl label --overwrite namespace strict {LABEL}=privileged" in capsys.readouterr().out
    assert labels_of(api, "strict")[LABEL] == "baseline"


def test_claims_that_hold_devices_are_listed_with_their_users(cluster, capsys):
    api, kubeconfig = cluster
    command = ["in-use", "--kubeconfig", kubeconfig]
    assert run(command) == ExitCode.OK
    assert f"No claim holds a device of {DRIVER}." in capsys.readouterr().out
    make_claims(api)
    assert run(command) == ExitCode.NO_MATCH
    assert capsys.readouterr().out.splitlines() == [
        "claim default/ours: n1/p/gpu-a; used by pods user",
        f"1 claim holds devices of {DRIVER}: end their pods first.",
    ]
    assert (
        run([*command, "--driver-name", "third.example.com", "--driver-name", "other.example.com"]) == ExitCode.NO_MATCH
    )
    assert capsys.readouterr().out.splitlines() == [
        "No claim holds a device of third.example.com.",
        "claim default/theirs: n1/p/gpu-a; used by pods user",
        "1 claim holds devices of other.example.com: end their pods first.",
    ]


def make_claims(api):
    """Make a claim for our driver, one for another driver, and one that waits."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    for name, driver in (("ours", DRIVER), ("theirs", "other.example.com"), ("pending", "")):
        claim = api.request("POST", CLAIMS.path("default"), body={"metadata": {"name": name}, "spec": spec})
        result = {"driver": driver, "pool": "n1/p", "device": "gpu-a", "request": "gpu"}
        user = {"resource": "pods", "name": "user", "uid": "1"}
        if driver:
            claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
            api.request("PUT", f"{CLAIMS.path('default')}/{name}/status", body=claim)


# -- uninstall-check: the release's record in helm -------------------------------------------------------------------


def packed(record):
    return base64.b64encode(base64.b64encode(gzip.compress(json.dumps(record).encode()))).decode()


def make_record(api, revision, status):
    """Make the Secret in which helm keeps a revision of a release."""
    info = {"status": status, "deleted": "2026-01-01T00:00:00Z", "description": "Deletion in progress", "notes": "…"}
    record = {"name": "mine", "version": revision, "info": info, "manifest": "a" * 5000}
    name = f"sh.helm.release.v1.mine.v{revision}"
    labels = {"owner": "helm", "name": "mine", "status": status}
    body = {
        "metadata": {"name": name, "labels": labels},
        "type": "helm.sh/release.v1",
        "data": {"release": packed(record)},
    }
    api.request("POST", SECRETS.path("gpus"), body=body)


def record_of(api, revision):
    secret = api.request("GET", SECRETS.path("gpus", f"sh.helm.release.v1.mine.v{revision}"))
    record = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
    return secret["metadata"]["labels"]["status"], record


def check(kubeconfig, revision=2):
    words = ["uninstall-check", "--namespace", "gpus", "--release", "mine", "--revision", str(revision)]
    return run([*words, "--driver-name", DRIVER, "--kubeconfig", kubeconfig])


@pytest.mark.parametrize("revision", [2, 7], ids=["of this revision", "of a rollback to it"])
def test_a_refused_uninstall_leaves_the_release_deployed_and_says_what_to_run_next(revision, cluster, capsys):
    api, kubeconfig = cluster
    make(api, "gpus")
    make_claims(api)
    make_record(api, revision - 1, "superseded")
    make_record(api, revision, "uninstalling")
    assert check(kubeconfig) == ExitCode.NO_MATCH
    said = capsys.readouterr().out
    assert f"1 claim holds devices of {DRIVER}: end their pods first." in said
    assert "Nothing was uninstalled: release mine is deployed as before." in said
    assert "helm uninstall mine -n gpus" in said
    status, record = record_of(api, revision)
    assert (status, record["info"]["status"], record["info"]["deleted"]) == ("deployed", "deployed", "")
    assert record["info"]["notes"] == "…"
    assert record["manifest"] == "a" * 5000
    assert record_of(api, revision - 1)[0] == "superseded"


@pytest.mark.parametrize("spoil", ["no record", "another form"])
def test_where_helms_record_is_not_to_be_set_back_the_refusal_says_how_to_keep_the_release(spoil, cluster, capsys):
    api, kubeconfig = cluster
    make(api, "gpus")
    make_claims(api)
    if spoil == "another form":
        body = {"metadata": {"name": "sh.helm.release.v1.mine.v2"}, "data": {"release": "bm90IGd6aXA="}}
        api.request("POST", SECRETS.path("gpus"), body=body)
    assert check(kubeconfig) == ExitCode.NO_MATCH
    assert "helm rollback mine REVISION -n gpus" in capsys.readouterr().out


def test_an_uninstall_that_nothing_holds_up_goes_on_and_its_record_is_left_to_helm(cluster, capsys):
    api, kubeconfig = cluster
    make(api, "gpus")
    make_record(api, 2, "uninstalling")
    assert check(kubeconfig) == ExitCode.OK
    assert "Nothing was uninstalled" not in capsys.readouterr().out
    assert record_of(api, 2)[0] == "uninstalling"


def test_a_check_that_can_not_read_claims_refuses_and_sets_the_record_back_too(cluster, capsys, monkeypatch):
    api, kubeconfig = cluster
    make(api, "gpus")
    make_record(api, 2, "uninstalling")
    monkeypatch.setattr("dra_driver.tools.world.access.read_list", refuse)
    assert check(kubeconfig) == ExitCode.ENVIRONMENT
    assert "is deployed as before" in capsys.readouterr().out
    assert record_of(api, 2)[0] == "deployed"


def refuse(*_):
    raise ApiError("forbidden", "not you", status=403)
