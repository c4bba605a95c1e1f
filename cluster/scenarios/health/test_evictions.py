"""NoExecute on a real cluster: which pods are deleted and when, and the effect of a toleration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import ACCOUNT, NAMESPACE, Agent
from cluster.cluster import Cluster
from cluster.machines.faulty_machine import FAULTY, KEY, FaultyMachine, use
from cluster.sandbox import until
from cluster.stage import Stage

RAISED = 15  # a source is polled every 10 s
FAULTY_GPU, FREE = 0, 1
TOLERATED = 25
EVICTING = """
version: health/v1
faults:
  needs-reset: {effect: NoExecute}
evictions: {devices: %d, period: 1h}
"""


@pytest.fixture
def eviction_leases(cluster: Cluster) -> Iterator[None]:
    """Two empty Leases that agents may take, as the chart makes them."""
    if not cluster.keeps_gated:
        pytest.skip("the server drops taints without the gate")
    names, api = ["dra-driver-eviction-0", "dra-driver-eviction-1"], cluster.api
    meta = {"name": "dra-driver-evictions", "namespace": NAMESPACE}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta}
    may = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"]}
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": meta["name"]}
    binding = {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [account]}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    made = [(f"{rbac}/roles", {**role, "rules": [{**may, "resourceNames": names}]}), (f"{rbac}/rolebindings", binding)]
    for name in names:
        meta = {"name": name, "namespace": NAMESPACE}
        made.append((leases, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}))
    for path, wire in made:
        api.call("POST", path, wire)
    yield
    for path, wire in made:
        api.call("DELETE", f"{path}/{wire['metadata']['name']}")


def tolerating(machine: FaultyMachine, place: int, *tolerations: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a claim for one GPU, with tolerations."""
    spec = machine.claim_for(place)
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = list(tolerations)
    return spec


def evicting(start_agent: Callable[..., Agent], folder: Path, devices: int) -> FaultyMachine:
    """Start an agent whose policy deletes the pods of at most so many faulty devices."""
    policy = folder / "health.yaml"
    policy.write_text(EVICTING % devices)
    return FaultyMachine(start_agent, folder, "--health-policy", str(policy), "--lease-namespace", NAMESPACE)


def effects(machine: FaultyMachine, place: int) -> list[str]:
    """Return the effects of a GPU's taints."""
    return [one["effect"] for one in machine.taints(place)]


def test_pods_of_a_faulty_gpu_are_deleted_after_their_toleration_and_within_the_budget(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path, eviction_leases: None
) -> None:
    machine = evicting(start_agent, tmp_path, 1)
    for place, name in ((FAULTY_GPU, "first"), (FREE, "second")):
        tolerated = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED}
        offered = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}
        use(stage, name, tolerating(machine, place, tolerated, offered))
    machine.set_health(FAULTY_GPU, FAULTY)
    until("NoExecute", lambda: effects(machine, FAULTY_GPU) == ["NoExecute"], RAISED)
    began = time.monotonic()
    machine.set_health(FREE, FAULTY)
    until("the budget is spent", lambda: effects(machine, FREE) == ["NoSchedule"], RAISED)
    find = stage.cluster.api.find
    until("the first pod is deleted", lambda: is_ending(find("Pod", "first", stage.namespace)), TOLERATED + 30)
    if honours_tolerations(stage):
        assert time.monotonic() - began > TOLERATED / 2, "the toleration's seconds were not waited for"
    assert not is_ending(find("Pod", "second", stage.namespace)), "a pod was deleted although the budget is spent"


def test_a_toleration_keeps_a_pod_only_if_it_names_the_effect(
    start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path, eviction_leases: None
) -> None:
    machine = evicting(start_agent, tmp_path, 2)
    use(stage, "named", tolerating(machine, FAULTY_GPU, {"key": KEY, "operator": "Exists", "effect": "NoExecute"}))
    use(stage, "unnamed", tolerating(machine, FREE, {"key": KEY, "operator": "Exists"}))
    for place in (FAULTY_GPU, FREE):
        machine.set_health(place, FAULTY)
        until("NoExecute", lambda place=place: effects(machine, place) == ["NoExecute"], RAISED)  # type: ignore[misc]
    find = stage.cluster.api.find
    until("the pod without an effect is deleted", lambda: is_ending(find("Pod", "unnamed", stage.namespace)), 30)
    if honours_tolerations(stage):
        assert not is_ending(find("Pod", "named", stage.namespace)), "a pod was deleted although it tolerates NoExecute"
    else:
        until("so is the other", lambda: is_ending(find("Pod", "named", stage.namespace)), 30)


def honours_tolerations(stage: Stage) -> bool:
    """Return whether the eviction sees tolerations: the scheduler of 1.34 copies none into the allocation."""
    return stage.cluster.version > "1.34"


def is_ending(found: dict[str, Any] | None) -> bool:
    return found is None or "deletionTimestamp" in found["metadata"]
