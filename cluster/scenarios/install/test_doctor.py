"""The doctor on a real cluster: it finds nothing wrong with a healthy one, and the right fault in a broken one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import ACCOUNT, DRIVER, NAMESPACE, Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.node import Node
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template

# A flag selects the machine that the doctor examines.
pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
# Off by default in versions before 1.36.
GATES = {"DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource"}


@pytest.fixture
def examine(cluster: Cluster, node: Node, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the doctor as a person on the node would, and return its report."""

    def run(*arguments: str, hardware: str = "simulated:demo-h100") -> dict[str, Any]:
        command = [
            *(sys.executable, "-m", "dra_driver", "doctor", "--output", "json"),
            *("--kubeconfig", str(cluster.kubeconfig), "--node-name", node.name, "--hardware", hardware),
            *("--cdi-root", str(node.cdi), "--host-root", str(tmp_path)),
            *("--kubelet-registrar-directory-path", str(node.registry)),
            *("--kubelet-plugins-directory-path", str(node.plugins)),
            *("--device-plugins-directory-path", str(node.plugins.parent / "device-plugins")),
            *arguments,
        ]
        surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
        assert done.returncode in {0, 1, 5}, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == 5 or report["isClean"] == (done.returncode == 0)
        return {**report, "status": done.returncode}

    return run


def found(report: dict[str, Any]) -> set[str]:
    """Return the ids of errors and warnings, after checking that each finding is complete."""
    for one in report["findings"]:
        assert all(one[key] for key in ("id", "severity", "subject", "message", "how", "remedy", "page")), one
        assert (REPOSITORY / one["page"]).is_file()
    return {one["id"] for one in report["findings"] if one["severity"] != "note"}


def check_clean(report: dict[str, Any]) -> bool:
    """Check that there is no error and no warning; a failure lists the findings."""
    assert found(report) == set(), report["findings"]
    return True


@pytest.mark.smoke
def test_a_healthy_cluster_and_node_have_no_findings_and_gates_that_are_off_are_noted(
    cluster: Cluster, agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "healthy", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("healthy")
    report = examine()
    assert report["unseen"] == []
    check_clean(report)
    off = {one["subject"] for one in report["findings"] if one["id"] == "kubernetes-gate-off"}
    assert off == (set() if cluster.keeps_gated else GATES)
    stage.delete_pod("healthy")


def test_the_doctor_reports_a_node_whose_agent_was_killed(
    agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "held", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("held")
    agent.kill()
    report = examine()
    assert {"node-not-registered", "node-dead-socket"} <= found(report)
    agent.start()
    until("registered again", lambda: check_clean(examine()), 30)
    stage.delete_pod("held")


def test_a_broken_class_and_slices_that_differ_from_the_hardware_are_found(
    cluster: Cluster, agent: Agent, examine: Callable[..., dict[str, Any]]
) -> None:
    broken = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "doctor-broken"},
        "spec": {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].nope == 1'}}]},
    }
    cluster.api.create(broken)
    try:
        assert found(examine()) == {"class-broken"}
    finally:
        cluster.api.delete("DeviceClass", "doctor-broken")
    assert {"slices-differ"} <= found(examine(hardware="simulated:dgx-a100"))


def test_a_support_bundle_is_written_for_its_owner_alone(
    agent: Agent, examine: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    examine("--bundle", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    listed = subprocess.run(["tar", "tzf", str(file)], capture_output=True, text=True, check=True).stdout.split()
    assert "dra-driver-bundle/cluster/slices.json" in listed
    assert "dra-driver-bundle/node/rows.json" in listed


ADMIN_LABEL = "resource.kubernetes.io/admin-access"
POLICY = REPOSITORY / "deploy" / "manifests" / "admission-policy.yaml"
RBAC = REPOSITORY / "deploy" / "manifests" / "rbac.yaml"


def test_a_node_whose_runtime_ignores_cdi_or_that_a_device_plugin_serves_is_found(
    agent: Agent, examine: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    config = tmp_path / "etc" / "containerd" / "config.toml"
    config.parent.mkdir(parents=True)
    table = '[plugins."io.containerd.cri.v1.runtime"]'
    config.write_text(f'version = 3\n{table}\nenable_cdi = false\ncdi_spec_dirs = ["{agent.node.cdi}"]\n')
    assert found(examine()) == {"runtime-cdi-off"}
    config.unlink()
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(tmp_path / "nvidia-gpu.sock"))
        plugin.listen()
        assert found(examine("--device-plugins-directory-path", str(tmp_path))) == {"node-device-plugin"}
    check_clean(examine())


def test_missing_slices_are_found_until_they_are_published_again(
    cluster: Cluster, agent: Agent, examine: Callable[..., dict[str, Any]]
) -> None:
    agent.kill()
    for one in agent.slices():
        cluster.api.delete("ResourceSlice", one["metadata"]["name"])
    assert {"slices-none", "node-not-registered", "node-dead-socket"} <= found(examine())
    agent.start()
    until("all is well again", lambda: check_clean(examine()), 30)


def test_rights_that_were_removed_and_policies_that_do_not_deny_are_found(
    cluster: Cluster, agent: Agent, examine: Callable[..., dict[str, Any]]
) -> None:
    labels = {"app.kubernetes.io/name": "dra-driver"}
    main = {"name": "agent", "image": "registry.example.com/none:1"}
    template = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": ACCOUNT, "containers": [main]}}
    template["spec"]["nodeSelector"] = {"nowhere": "x"}
    meta = {"name": "doctor", "namespace": NAMESPACE, "labels": labels}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    daemonset = json.dumps({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec})
    cluster.kubectl("apply", "-f", "-", stdin=daemonset)
    try:
        check_clean(examine())
        cluster.kubectl("delete", "clusterrolebinding", ACCOUNT)
        until("the missing right", lambda: "access-missing-right" in found(examine()), 30)
        cluster.apply(RBAC)
        cluster.kubectl("delete", "validatingadmissionpolicybinding", ACCOUNT)
        until("a policy without effect", lambda: found(examine()) == {"access-policy-off"}, 30)
        cluster.kubectl("delete", "validatingadmissionpolicy", ACCOUNT)
        assert found(examine()) == {"access-no-policy"}
    finally:
        cluster.apply(RBAC, POLICY)
        cluster.kubectl("delete", "daemonset", "doctor", "-n", NAMESPACE)
    until("all is well again", lambda: check_clean(examine()), 30)


def test_classes_without_devices_and_namespaces_without_the_label_are_found(
    cluster: Cluster, agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    nothing = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "teapot"'
    spec = {"selectors": [{"cel": {"expression": nothing}}]}
    meta = {"name": "doctor-nothing"}
    cluster.api.create({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": spec})
    cluster.kubectl("label", "namespace", stage.namespace, f"{ADMIN_LABEL}=true")
    try:
        report = examine()
        check_clean(report)
        assert "class-no-match" in {one["id"] for one in report["findings"]}
        stage.create(
            template(stage.namespace, "wants-nothing", devices(request("gpu", "doctor-nothing"))),
            template(stage.namespace, "admin", devices(request("gpu", adminAccess=True))),
            template(stage.namespace, "elsewhere", devices(request("gpu", "doctor-missing"))),
        )
        assert found(examine()) == {"class-wanted-no-match", "class-missing"}
        cluster.kubectl("label", "namespace", stage.namespace, f"{ADMIN_LABEL}-")
        assert found(examine()) == {"class-wanted-no-match", "class-missing", "access-admin-refused"}
    finally:
        cluster.api.delete("DeviceClass", "doctor-nothing")
        cluster.kubectl("delete", "resourceclaimtemplates", "--all", "-n", stage.namespace)


def test_a_waiting_pod_is_reported_with_the_schedulers_message(
    agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    stage.create(
        template(stage.namespace, "too-many", devices(request("gpus", count=32))),
        pod(stage.namespace, "waits", container("main", "gpu"), templates={"gpu": "too-many"}),
    )
    stage.pending("waits", "cannot allocate all claims")
    report = examine()
    check_clean(report)
    [finding] = [one for one in report["findings"] if one["id"] == "claim-waits"]
    assert "cannot allocate all claims" in finding["message"]
    stage.delete_pod("waits")


@pytest.mark.parametrize("role", ["system:aggregate-to-view", ""], ids=["view", "nothing"])
def test_with_few_rights_the_doctor_lists_what_it_could_not_read_and_finds_nothing_false(
    cluster: Cluster, agent: Agent, examine: Callable[..., dict[str, Any]], role: str
) -> None:
    name = "doctor-view" if role else "doctor-nothing"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}
    cluster.api.create(account)
    if role:
        cluster.kubectl(
            "create", "clusterrolebinding", name, f"--clusterrole={role}", f"--serviceaccount=default:{name}"
        )
    try:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = cluster.api.path("ServiceAccount", name, "default") + "/token"
        token = str(cluster.api.call("POST", path, body)["status"]["token"])
        kubeconfig = cluster.authority.kubeconfig(name, token, cluster.api.server)
        report = examine("--kubeconfig", str(kubeconfig), "--only", "cluster")
        check_clean(report)
        assert report["status"] == (0 if role else 5)
        assert {"nodes", "slices", "policies"} <= {one["what"] for one in report["unseen"]}
        assert all("403" in one["why"] or "forbidden" in one["why"] for one in report["unseen"]), report["unseen"]
        assert report["lookedAt"] == (["Kubernetes", "agents", "claims"] if role else ["Kubernetes"])
    finally:
        if role:
            cluster.kubectl("delete", "clusterrolebinding", name)
        cluster.api.delete("ServiceAccount", name, "default")


@pytest.mark.soak
def test_a_claim_that_is_not_prepared_is_reported_with_the_kubelets_message(
    agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    """The doctor gives a pod a minute to start."""
    sharing = {"strategy": "nonsense"}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    stage.create(
        template(stage.namespace, "wrong", devices(request("gpu"), config=config)),
        pod(stage.namespace, "stuck", container("main", "gpu"), templates={"gpu": "wrong"}),
    )
    until("the doctor's finding", lambda: found(examine()) == {"claim-not-prepared"}, 150, every=5)
    [finding] = [one for one in examine()["findings"] if one["id"] == "claim-not-prepared"]
    assert "claim.bad-config" in finding["message"]
    stage.delete_pod("stuck")
