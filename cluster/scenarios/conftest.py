"""One cluster for all scenarios of a run; for each scenario an agent, a namespace, and a line with its time.

Environment variables choose the cluster: `K8S` is the version, `GATES=default` leaves Kubernetes' gates as they are.
After each scenario nothing of it may be left on the node; that is checked here and not in each scenario.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import ACCOUNT, NAMESPACE, Agent, remove_dead_sockets
from cluster.api import Refused
from cluster.balance import spread
from cluster.cluster import REPOSITORY, Cluster
from cluster.machines.hardware import KINDS, machine
from cluster.node import Node
from cluster.sandbox import until
from cluster.stage import Stage, namespace_name

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and output is as wide as it says
SOAK = bool(os.environ.get("SOAK"))
# A kubelet that hit a race of its own retries only after a minute or more: the core lane does not wait that long.
RESYNC = "1m0s" if SOAK else "4s"
DEPLOYED = (
    "deploy/manifests/rbac.yaml",
    "deploy/manifests/admission-policy.yaml",
    "deviceclasses/gpu.nvidia.com.yaml",
    "deviceclasses/mig.nvidia.com.yaml",
    *(f"deviceclasses/{path.name}" for path in sorted((REPOSITORY / "deviceclasses").glob("*-share*.yaml"))),
)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with everything deployed that an administrator would deploy."""
    version, gates = os.environ.get("K8S", "1.35"), os.environ.get("GATES") != "default"
    with Cluster(version=version, gates=gates, nodes=2, resync=RESYNC) as started:
        for name in DEPLOYED:
            started.kubectl("apply", "-f", str(REPOSITORY / name))
        until("the admission policy is enforced", lambda: _enforced(started), 30)
        yield started
        if request.session.testsfailed:
            started.keep_logs()


def _enforced(cluster: Cluster) -> bool:
    """Return whether the policy is in force, which happens a moment after it was created."""
    api = cluster.api.as_user(cluster.node_token("node-1", ACCOUNT, NAMESPACE))
    pool = {"name": "nobody", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nobody", "nodeName": "nobody", "pool": pool, "devices": []}
    meta = {"name": "policy-probe"}
    probe = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}
    try:
        api.create(probe, dryRun="All")
    except Refused as refusal:
        return "ValidatingAdmissionPolicy" in str(refusal)
    return False


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The node that most scenarios use."""
    return cluster.nodes[0]


@pytest.fixture
def start_agent(cluster: Cluster) -> Iterator[Callable[..., Agent]]:
    """A function that starts agents; anything that they leave after their claims are gone fails the scenario."""
    started: list[Agent] = []

    def start(node: Node | None = None, **options: Any) -> Agent:
        agent = Agent(cluster, node or cluster.nodes[0], **options)
        started.append(agent)
        return agent.start()

    yield start
    running = [agent for agent in started if agent.daemon.alive]
    try:
        for agent in running:
            agent.wait_empty()
            agent.check_slices()
        for agent in running:
            agent.stop()
        for agent in running:
            assert agent.sockets() == [], "sockets left by an agent that was asked to end"
    finally:
        for agent in started:
            agent.kill()
            for found in agent.slices():
                cluster.api.delete("ResourceSlice", found["metadata"]["name"])
            shutil.rmtree(agent.data, ignore_errors=True)
            for file in agent.cdi_files():
                file.unlink()
            remove_dead_sockets(agent.node.registry)


# The core lane runs most scenarios on the simulated machine alone; `make soak` runs all of them on both.
@pytest.fixture(params=KINDS if SOAK else KINDS[:1])
def agent(request: pytest.FixtureRequest, start_agent: Callable[..., Agent], tmp_path: Path) -> Agent:
    """The agent of a machine with eight H100, two of them in MIG mode; its devices are published."""
    started = start_agent(**machine(request.param, tmp_path))
    started.published()
    return started


@pytest.fixture(params=KINDS)
def either_agent(request: pytest.FixtureRequest, start_agent: Callable[..., Agent], tmp_path: Path) -> Agent:
    """The same agent on both machines: simulated, and the real NVIDIA vendor over a fake library."""
    started = start_agent(**machine(request.param, tmp_path))
    started.published()
    return started


# In the core lane the long scenarios run on one kind of machine with the gates on, on the other with the defaults.
@pytest.fixture(params=KINDS if SOAK else KINDS[:1] if os.environ.get("GATES") == "default" else KINDS[1:])
def either_machine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that makes machines of either kind: `start_agent(**either_machine("name", partitioned=…))`."""
    return lambda name, **variant: machine(request.param, tmp_path / name, **variant)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest, start_agent: object) -> Iterator[str]:
    """A namespace that is emptied, pods and claims included, before the agent is checked."""
    name = namespace_name(request.node.name, next(_numbers))
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.api.wait("ServiceAccount", "default", name, "made", lambda _: True)
    before = {node.name: node.mount_points() for node in cluster.nodes}
    yield name
    for kind in ("Pod", "ResourceClaimTemplate", "ResourceClaim"):
        cluster.api.call("DELETE", cluster.api.path(kind, namespace=name))
    for kind in ("Pod", "ResourceClaim"):
        until(f"every {kind} of the scenario gone", functools.partial(_none_left, cluster, kind, name), 90)
    until("every mount of the scenario gone", functools.partial(_no_mount_left, cluster, before), 30)
    # Don't wait until the namespace itself is gone, which takes long.
    cluster.api.delete("Namespace", name)


def _none_left(cluster: Cluster, kind: str, namespace: str) -> bool:
    left = [item["metadata"]["name"] for item in cluster.api.list(kind, namespace)]
    assert not left, left
    return True


def _no_mount_left(cluster: Cluster, before: dict[str, set[str]]) -> bool:
    left = [point for node in cluster.nodes for point in sorted(node.mount_points() - before[node.name])]
    assert not left, left
    return True


@pytest.fixture
def stage(cluster: Cluster, namespace: str) -> Stage:
    """The scenario's namespace, seen from the first node."""
    return Stage(cluster, cluster.nodes[0], namespace)


@pytest.hookimpl(trylast=True)  # last, when it is known which scenarios run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Divide the work equally among the workers, each of which has its own cluster."""
    order = spread([item.nodeid for item in items], int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    places = {nodeid: place for place, nodeid in enumerate(order)}
    items.sort(key=lambda item: places[item.nodeid])


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str]:
    """Count as usual, but print no letters, because each scenario has its own line."""
    is_call = report.when == "call"
    words = {"passed": "passed" if is_call else "", "failed": "failed" if is_call else "error"}
    return words.get(report.outcome, report.outcome), "", ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print each scenario's name with its time, including set-up and clean-up."""
    times = _TIMES.setdefault(report.nodeid, [0.0])
    times[0] += report.duration
    if report.failed:
        _FAILED.add(report.nodeid)
    if report.when == "teardown":
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        verdict = "FAILED" if report.nodeid in _FAILED else "skipped" if report.nodeid in _SKIPPED else "ok"
        print(f"{times[0]:7.1f} s  {verdict:7}  {name}", flush=True)
    elif report.skipped:
        _SKIPPED.add(report.nodeid)


_numbers = itertools.count(1)
_TIMES: dict[str, list[float]] = {}
_FAILED: set[str] = set()
_SKIPPED: set[str] = set()
