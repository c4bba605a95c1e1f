"""A GPU needs a reset while a pod uses it: it is drained, reset, proven healthy and given to the next pod."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.agent import ACCOUNT, NAMESPACE, Agent
from cluster.cluster import Cluster
from cluster.machines.faulty_machine import FAULTY, HEALTHY, FaultyMachine
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import container, pod, template
from tests.support.programs.static_program import build_static

SLOT = "dra-driver-remediation-0"
RAISED, RETURNED = 15, 60
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


@pytest.fixture
def slot(cluster: Cluster) -> Iterator[str]:
    """An empty Lease that agents may take, as the chart makes it; return its path."""
    meta = {"name": SLOT, "namespace": NAMESPACE}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    group = "rbac.authorization.k8s.io"
    may = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"]}
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [may | {"resourceNames": [SLOT]}]}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    bound = {"roleRef": {"apiGroup": group, "kind": "Role", "name": SLOT}, "subjects": [subject]}
    made = (
        (LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}),
        (f"{rbac}/roles", role),
        (f"{rbac}/rolebindings", {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta, **bound}),
    )
    for path, body in made:
        cluster.api.call("POST", path, body)
    yield f"{LEASES}/{SLOT}"
    for path, _ in made:
        cluster.api.call("DELETE", f"{path}/{SLOT}")


@pytest.mark.smoke
def test_a_gpu_that_needs_a_reset_is_drained_reset_and_given_to_the_next_pod(
    start_agent: Callable[..., Agent], stage: Stage, slot: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("needs root, and a C compiler")
    root = tmp_path / "driver"
    build_static(root / "usr/bin/nvidia-smi", log=root / "calls")
    machine = FaultyMachine(start_agent, tmp_path, "--remediation=on", f"--nvidia-driver-root={root}", partitioned=())
    spec = machine.claim_for(0)
    stage.create(
        template(stage.namespace, "used", spec),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "used"}),
    )
    assert stage.devices(stage.check("user")) == [machine.name(0)]
    machine.set_health(0, FAULTY)

    def stages() -> str:
        return machine.agent.ask("/metrics")

    until("the drain is asked for", lambda: 'dra_driver_remediations{stage="drain-asked"} 1.0' in stages(), RAISED)
    if stage.cluster.keeps_gated:
        held = {taint["key"].rpartition("/")[2]: taint.get("value") for taint in machine.taints(0)}
        assert held == {"needs-reset": "gpu-reset", "remediation": "reset"}
    path = f"/api/v1/namespaces/{stage.namespace}/events?fieldSelector=involvedObject.name%3Duser"
    reasons = lambda: {one["reason"] for one in stage.cluster.api.call("GET", path)["items"]}  # noqa: E731
    until("the pod is told", lambda: "DeviceFault" in reasons(), PATIENCE)
    assert not (root / "calls").exists(), "reset under a running pod"
    assert not stage.cluster.api.call("GET", slot).get("spec", {}).get("holderIdentity"), "a slot is taken too early"

    stage.delete_pod("user")
    until("the GPU is reset", (root / "calls").exists, PATIENCE)
    until("it is returned", lambda: "dra_driver_remediations{" not in stages(), RETURNED)
    until("it is offered", lambda: machine.name(0) in machine.agent.devices() and not machine.taints(0), RETURNED)
    (call,) = (root / "calls").read_text().splitlines()
    assert call.startswith("--gpu-reset -i GPU-")
    assert call.endswith(" env=0 root=1")
    assert not stage.cluster.api.call("GET", slot).get("spec", {}).get("holderIdentity"), "the slot is still taken"
    machine.set_health(0, HEALTHY)
    stage.create(pod(stage.namespace, "next", container("main", "gpu"), templates={"gpu": "used"}))
    assert stage.devices(stage.check("next")) == [machine.name(0)]
