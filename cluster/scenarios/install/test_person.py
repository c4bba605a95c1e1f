"""What people ask of a live cluster with the rights that they have: an administrator, an account of one namespace.

Every command runs as a process of its own; what it writes for programs is checked against its schema.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.node import Node
from cluster.scenarios.install.test_few_rights import NOT_KNOWN, kubeconfig_of
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
Run = Callable[..., tuple[int, str, str]]
ONE_GPU = devices(request("gpu"))


def runner(kubeconfig: Path) -> Run:
    """Return what runs a command as the account of a kubeconfig: its status, what it wrote, what it complained of."""

    def run(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "dra_driver", *words]
        surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(kubeconfig)}
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def administrator(cluster: Cluster) -> Run:
    """The commands with all rights."""
    return runner(cluster.kubeconfig)


@pytest.fixture
def person(cluster: Cluster, stage: Stage, tmp_path: Path) -> Run:
    """The commands with the rights of the role `view` in the scenario's namespace, and no others."""
    return runner(kubeconfig_of(cluster, stage.namespace, tmp_path))


def document(done: tuple[int, str, str], kind: DocumentKind) -> dict[str, Any]:
    """Return what a command wrote for programs, when its schema allows it."""
    found: dict[str, Any] = json.loads(done[1])
    jsonschema.validate(found, schema_of(kind))
    return found


def test_a_drain_of_a_live_node_sends_its_running_pods_back_to_the_queue(
    administrator: Run, agent: Agent, stage: Stage, node: Node
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "trains", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("trains")
    status, out, _ = administrator("simulate", "--drain", node.name)
    assert status == 1, out
    assert "evicted: " in out
    assert "trains" in out
    done = administrator("simulate", "--drain", node.name, "-o", "json")
    moments = document(done, DocumentKind.SIMULATION)["moments"]
    [moment] = [one for one in moments if one["event"]["kind"] == "drain"]
    assert moment["event"] == {"kind": "drain", "target": node.name, "jobs": []}
    assert [one for one in moment["evicted"] if one.endswith("trains")]


def test_a_pod_is_explained_whatever_it_waits_for(
    administrator: Run, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    where = ("-n", stage.namespace)
    limits = {"resources": {"limits": {"nvidia.com/gpuu": "1"}}}
    extended = pod(stage.namespace, "extended", container("main"))
    extended["spec"]["containers"][0] |= limits
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "runs", container("main", "gpu"), templates={"gpu": "one-gpu"}),
        pod(stage.namespace, "misspelt", container("main", "gpu"), templates={"gpu": "one-gup"}),
        extended,
    )
    stage.check("runs")
    status, out, _ = administrator("explain", "pod", "runs", *where)
    assert (status, "holds gpu-0000" in out) == (0, True), out
    status, out, _ = administrator("explain", "pod", "misspelt", *where)
    assert (status, "one-gpu" in out) == (1, True), out
    status, out, _ = administrator("explain", "pod", "extended", *where)
    assert (status, "nvidia.com/gpuu" in out) == (1, True), out
    status, out, _ = administrator("explain", "pods", *where, "-o", "json")
    found = document((status, out, ""), DocumentKind.EXPLANATIONS)["explanations"]
    assert {one["subject"]["name"]: one["ok"] for one in found} == {"runs": True, "misspelt": False, "extended": False}
    gates = {name: one["how"] for one in found for name, one in one["gates"].items()}
    assert all(gates.values()), "the source of each gate's state"
    status, out, _ = administrator("doctor", "--only", "cluster", "-o", "json", *where)
    wrong = {one["id"] for one in document((status, out, ""), DocumentKind.DOCTOR_REPORT)["findings"]}
    assert {"pod-reference-missing", "pod-resource-unserved"} <= wrong


def test_an_account_of_one_namespace_sees_its_own_objects_and_is_told_what_it_may_not_read(
    person: Run, administrator: Run, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old"}}
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    manifest["spec"] = {"containers": [{"name": "main", "image": "x", **limits}]}  # type: ignore[assignment]
    (tmp_path / "old.yaml").write_text(json.dumps(manifest))
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "mine", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("mine")
    claims = document(person("claims", "-o", "json"), DocumentKind.CLAIM_TREE)
    [claim] = claims["claims"]
    assert claim["facts"]["namespace"] == stage.namespace
    assert {one["kind"] for one in claims["unseen"]} == {"ResourceSlice", "DeviceClass"}
    status, out, err = person("in-use")
    assert (status, f"claim {stage.namespace}/mine-gpu-" in out) == (1, True), out
    missing = "the right to list them is missing: bind ClusterRole view"
    assert f"ResourceClaims of other namespaces than {stage.namespace} ({missing}" in err
    assert person("in-use", "-n", stage.namespace)[2] == ""
    status, _, err = person("cel", "test", "-e", "true", "--cluster")
    assert (status, "cannot list resource" in err, "ServiceAccount" in err) == (NOT_KNOWN, True, False)
    status, out, err = person("doctor", "--only", "cluster", "-n", stage.namespace, "-o", "json")
    report = document((status, out, err), DocumentKind.DOCTOR_REPORT)
    assert "claims" in report["lookedAt"]
    assert {"nodes", "slices"} <= {one["what"] for one in report["unseen"]}
    status, out, err = person("migrate", str(tmp_path / "old.yaml"))
    assert (status, "ResourceClaimTemplate" in out) == (0, True), err
    by = document(administrator("slices", "-o", "json"), DocumentKind.SLICE_TREE)["figures"]
    assert {one["name"]: one["devices"] for one in by["namespaces"]}[stage.namespace] == 1
    status, out, _ = administrator("slices", "--by", "class")
    assert (status, "gpu.nvidia.com" in out) == (0, True)


def test_a_node_whose_agent_is_gone_is_still_shown_with_what_claims_hold_there(
    administrator: Run, agent: Agent, cluster: Cluster, stage: Stage, node: Node
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "stays", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("stays")
    agent.stop()
    for one in cluster.api.list("ResourceSlice"):
        if one["spec"].get("nodeName") == node.name:
            cluster.api.delete("ResourceSlice", one["metadata"]["name"])
    found = document(administrator("slices", "-o", "json"), DocumentKind.SLICE_TREE)
    [shown] = [one for one in found["nodes"] if one["name"] == node.name]
    assert [flag["code"] for pool in shown["children"] for flag in pool["flags"]] == ["pool-gone"]
    status, out, _ = administrator("slices")
    assert (status, "stays" in out) == (0, True), out
    report = document(administrator("doctor", "--only", "cluster", "-o", "json"), DocumentKind.DOCTOR_REPORT)
    assert "claim-pool-gone" in {one["id"] for one in report["findings"]}
    assert not any("may be lost" in one["message"] for one in report["findings"])
    agent.start()
    agent.published()
