"""mps.tenants=namespace on the real API server and scheduler: no pod gets a share of another namespace in any way.

The policies and classes are the chart's. Circumventions are tried as a user of a namespace, and through a class of an
administrator that is too wide. What was allocated before the setting is refused by the node's last check.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent import Agent
from cluster.api import Object, Refused
from cluster.chart import CHART, NAMESPACE
from cluster.cluster import REPOSITORY, Cluster
from cluster.components import programs
from cluster.node import Node
from cluster.sandbox import until
from cluster.stage import Stage, results
from cluster.workload import claim, container, devices, pod, request, template

WIDE = "everything.example.com"
VERSIONS = ("v1", "v1beta2", "v1beta1")


def own_class(namespace: str) -> str:
    return f"{namespace}.gpu-share-mps.nvidia.com"


def class_of_team_z(tenant: str) -> Object:
    """Return a class with the name of one tenant that selects the shares of another, unless that is `team-z` too."""
    text = f'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].tenant == "{tenant}"'
    spec = {"selectors": [{"cel": {"expression": text}}]}
    meta = {"name": own_class("team-z")}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": spec}


def rendered(*namespaces: str) -> list[Object]:
    """Return the classes and policies of these tenants, as the chart renders them."""
    values = f"mps.tenants=namespace,mps.namespaces={{{','.join(namespaces)}}}"
    command = [str(programs.helm()), "template", "dra-driver", str(CHART), "-n", NAMESPACE, "--kube-version", "1.35.0"]
    command += ["--set", values, "--show-only", "templates/tenants.yaml", "--show-only", "templates/deviceclasses.yaml"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = [one for one in yaml.safe_load_all(said) if one]
    return [one for one in found if one["kind"] != "DeviceClass" or one["metadata"]["name"].startswith(namespaces)]


@dataclass(frozen=True, slots=True)
class Tenants:
    """Two namespaces with policies in force, and the agent."""

    cluster: Cluster
    mine: str
    theirs: str

    def clear(self) -> None:
        """Delete everything that may hold a share, and wait until it is gone."""
        for name in (self.mine, self.theirs):
            for kind in ("Pod", "ResourceClaimTemplate", "ResourceClaim"):
                self.cluster.api.call("DELETE", self.cluster.api.path(kind, namespace=name))
            until("no claim is left", lambda name=name: not self.cluster.api.list("ResourceClaim", name), 90)

    def refusal(self, content: Object, version: str = "v1") -> str:
        """Return why an object is refused in a dry run; empty when it is not."""
        path = self.cluster.api.path(content["kind"], namespace=content["metadata"].get("namespace", ""))
        body = {**content, "apiVersion": f"resource.k8s.io/{version}"}
        try:
            self.cluster.api.call("POST", path.replace("/v1/", f"/{version}/"), body, dryRun="All")
        except Refused as refused:
            return str(refused)
        return ""


@pytest.fixture
def tenants(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Tenants]:
    theirs = f"{namespace}-b"
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": theirs}})
    cluster.api.wait("ServiceAccount", "default", theirs, "made", lambda _: True)
    file = tmp_path / "tenants.yaml"
    wide = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": WIDE}, "spec": {}}
    file.write_text(yaml.safe_dump_all([*rendered(namespace, theirs), wide]))
    cluster.kubectl("apply", "-f", str(file))
    made = Tenants(cluster, namespace, theirs)
    probe = claim(namespace, "probe", devices(request("gpu", own_class(theirs))))
    # Each policy is enforced a moment after it was created, in no order.
    until("the policy for claims is enforced", lambda: made.refusal(probe), 30)
    until("the policy for classes is enforced", lambda: made.refusal(class_of_team_z("team-y")), 30)
    yield made
    made.clear()
    cluster.kubectl("delete", "-f", str(file))
    cluster.api.delete("Namespace", theirs)


@pytest.fixture
def agent(tenants: Tenants, node: Node, start_agent: Callable[..., Agent], tmp_path: Path) -> Iterator[Agent]:
    """An agent with its supervisor, with GPUs divided between both namespaces."""
    rules = tmp_path / "rules.yaml"
    rule = "{replicas: 4, sharing: {strategy: MPS}, namespaces: [%s, %s]}" % (tenants.mine, tenants.theirs)  # noqa: UP031
    rules.write_text(f"version: rules/v1\nrules: [{rule}]\n")
    argv = [sys.executable, "-m", "dra_driver", "mps", "--kubelet-plugins-directory-path", str(node.plugins)]
    argv += ["--hardware", "simulated:demo-h100"]
    supervisor = node.daemon("mps", argv, environment={"PYTHONPATH": str(REPOSITORY)})
    started = start_agent(flags=["--sharing-config", str(rules), "--mps-tenants", "namespace"])
    supervisor.start()
    started.published()
    yield started
    tenants.clear()  # the last claim of a device ends its daemon, through the supervisor
    started.wait_empty()
    supervisor.stop()


def tenant_of(agent: Agent, device: str) -> str:
    return str(agent.devices()[device]["attributes"]["tenant"]["string"])


def alternatives(*classes: str) -> dict[str, Any]:
    return {"name": "gpu", "firstAvailable": [{"name": f"n{i}", "deviceClassName": c} for i, c in enumerate(classes)]}


def test_requests_for_the_class_of_another_namespace_are_refused_whatever_their_form(tenants: Tenants) -> None:
    served = {v["version"] for v in tenants.cluster.api.call("GET", "/apis/resource.k8s.io")["versions"]}
    mine, theirs = own_class(tenants.mine), own_class(tenants.theirs)
    for version in (one for one in VERSIONS if one in served):
        plain = {"name": "gpu", "deviceClassName": theirs} if version == "v1beta1" else request("gpu", theirs)
        good = {"name": "gpu", "deviceClassName": mine} if version == "v1beta1" else request("gpu", mine)
        for make in (claim, template):
            assert not tenants.refusal(make(tenants.mine, "it", devices(good)), version)
            for wrong in (
                devices(plain),
                devices(good, {**plain, "name": "second"}),
                devices(alternatives("gpu.nvidia.com", theirs)),
            ):
                said = tenants.refusal(make(tenants.mine, "it", wrong), version)
                assert "its device class is for claims of another namespace" in said, (version, wrong)
                assert f"that of {tenants.mine} is {mine}" in said


def test_a_class_that_names_a_namespace_and_does_not_select_by_it_is_refused(tenants: Tenants) -> None:
    assert not tenants.refusal(class_of_team_z("team-z"))
    assert "a selector has to say" in tenants.refusal(class_of_team_z("team-y"))


def test_each_namespace_gets_its_own_shares_and_cannot_get_those_of_another(
    tenants: Tenants, agent: Agent, stage: Stage, cluster: Cluster
) -> None:
    other = Stage(cluster, cluster.nodes[0], tenants.theirs)
    for here in (stage, other):
        here.create(template(here.namespace, "share", devices(request("share", own_class(here.namespace)))))
        for name in ("first", "second"):
            here.create(pod(here.namespace, name, container("main", "share"), templates={"share": "share"}))
    for here in (stage, other):
        for name in ("first", "second"):
            found = here.running(name)
            (device,) = {one["device"] for held in here.claims(found).values() for one in results(held)}
            assert tenant_of(agent, device) == here.namespace

    # An administrator's class that matches every device: neither a selector nor an alternative helps.
    shares = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu-share"'
    theirs = f'{shares} && device.attributes["gpu.nvidia.com"].tenant == "{tenants.theirs}"'
    wide = {"name": "n0", "deviceClassName": WIDE, "selectors": [{"cel": {"expression": theirs}}]}
    tries = {
        "selects-them": request("share", WIDE, theirs),
        "selects-any": request("share", WIDE, shares),
        "as-alternative": {"name": "share", "firstAvailable": [wide]},
    }
    for name, spec in tries.items():
        stage.create(template(stage.namespace, name, devices(spec)))
        stage.create(pod(stage.namespace, name, container("main", "share"), templates={"share": name}))
    for name in tries:
        until(f"the Event about {name}", lambda name=name: _is_explained(stage, name), 60)
        assert not cluster.api.get("Pod", name, stage.namespace)["spec"].get("nodeName")
    claims = [row for row in agent.ledger_rows() if row[0] == "claims"]
    assert len(claims) == 4


def _is_explained(stage: Stage, name: str) -> bool:
    return "may lead to shares of other namespaces" in " ".join(stage.events(name))


def test_a_share_that_was_allocated_before_the_switch_is_refused_with_what_to_delete(
    tenants: Tenants, agent: Agent, stage: Stage, cluster: Cluster
) -> None:
    """The allocation is written while its policy is absent, as it was before the setting."""
    policy = (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/dra-driver-mps-tenants-allocations"
    )
    kept = cluster.api.call("GET", policy)
    cluster.api.call("DELETE", policy)
    text = f'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].tenant == "{tenants.theirs}"'
    stage.create(claim(stage.namespace, "old", devices(request("share", WIDE, text))))
    stage.create(pod(stage.namespace, "late", container("main", "share"), claims={"share": "old"}))
    said = f"delete the pods that use claim {stage.namespace}/old"
    until("the pod's event says what to delete", lambda: said in " ".join(stage.events("late")), 90)
    assert any("claim.sharing-tenant" in event for event in stage.events("late"))
    assert agent.ledger_rows() == []
    meta = {"name": kept["metadata"]["name"], "labels": kept["metadata"]["labels"]}
    back = {"apiVersion": kept["apiVersion"], "kind": kept["kind"], "metadata": meta, "spec": kept["spec"]}
    cluster.api.call("POST", policy.rpartition("/")[0], back)
    # What was allocated before may still be changed, so that pods can end.
    cluster.api.patch("ResourceClaim", "old", stage.namespace, {"metadata": {"labels": {"a": "b"}}})
    stage.delete_pod("late")


def test_an_extended_resource_is_refused(tenants: Tenants, agent: Agent, stage: Stage, cluster: Cluster) -> None:
    # The name of this test is part of the resource's, which may have 63 characters.
    if not cluster.gates:
        pytest.skip("without the gate DRAExtendedResource the name means nothing")
    name = f"deviceclass.resource.kubernetes.io/{own_class(tenants.theirs)}"
    main = container("main")
    main["resources"] = {"limits": {name: "1"}}
    stage.create(pod(stage.namespace, "extended", main))
    if cluster.version < "1.35":  # its scheduler makes claims for names of a class's own alone, and lets this pod run
        cluster.api.wait("Pod", "extended", stage.namespace, "running", lambda pod: pod["status"]["phase"] == "Running")
        assert agent.ledger_rows() == cluster.api.list("ResourceClaim", stage.namespace) == []
        return
    said = "its device class is for claims of another namespace"
    until("the Event with the reason", lambda: said in " ".join(stage.events("extended")), 60)
    assert not cluster.api.get("Pod", "extended", stage.namespace)["spec"].get("nodeName")
    assert agent.ledger_rows() == []
