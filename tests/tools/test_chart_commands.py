"""The commands that the chart's Jobs run: pod-security before the agents start, in-use before an uninstall."""

from __future__ import annotations

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, NAMESPACES
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
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    for name, driver in (("ours", DRIVER), ("theirs", "other.example.com"), ("pending", "")):
        claim = api.request("POST", CLAIMS.path("default"), body={"metadata": {"name": name}, "spec": spec})
        result = {"driver": driver, "pool": "n1/p", "device": "gpu-a", "request": "gpu"}
        user = {"resource": "pods", "name": "user", "uid": "1"}
        if driver:
            claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
            api.request("PUT", f"{CLAIMS.path('default')}/{name}/status", body=claim)
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
