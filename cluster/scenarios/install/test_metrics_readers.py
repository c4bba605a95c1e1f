"""Who may read metrics, decided by a real API server: the agent's TLS port, with the chart's own roles."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent import ACCOUNT, NAMESPACE, Agent
from cluster.api import Object
from cluster.chart import CHART
from cluster.cluster import Cluster
from cluster.components import programs
from cluster.sandbox import until

VALUES = "metrics.readers=authorized,metrics.tls.secret=made-by-hand"
REVIEWS = {"tokenreviews", "subjectaccessreviews"}


def rendered() -> list[Object]:
    """Return the chart's ClusterRoles for metrics that only authorized readers may read."""
    command = [str(programs.helm()), "template", "dra-driver", str(CHART), "-n", NAMESPACE, "--kube-version", "1.35.0"]
    command += ["--set", VALUES, "--show-only", "templates/rbac.yaml", "--show-only", "templates/metrics.yaml"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [one for one in yaml.safe_load_all(said) if one and one["kind"] == "ClusterRole"]


def binding(role: str, account: str, namespace: str) -> Object:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    meta = {"name": f"readers-{role}"}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": meta}
    return {**kind, "roleRef": reference, "subjects": [subject]}


@pytest.fixture
def roles(cluster: Cluster, namespace: str) -> Iterator[None]:
    """The agent may review, and Prometheus may read, by the rules that the chart renders."""
    found = rendered()
    (reader,) = [one for one in found if one["metadata"]["name"].endswith("metrics-reader")]
    reviews = [rule for one in found for rule in one["rules"] if REVIEWS & set(rule.get("resources", ()))]
    reviewer = {**reader, "metadata": {"name": "metrics-reviewer"}, "rules": reviews}
    made = [
        reader,
        reviewer,
        binding(reader["metadata"]["name"], "prometheus", namespace),
        binding("metrics-reviewer", ACCOUNT, NAMESPACE),
    ]
    for one in made:
        path = f"/apis/rbac.authorization.k8s.io/v1/{one['kind'].lower()}s"
        cluster.api.call("POST", path, one)
    yield
    for one in made:
        path = f"/apis/rbac.authorization.k8s.io/v1/{one['kind'].lower()}s"
        cluster.api.call("DELETE", f"{path}/{one['metadata']['name']}")


@pytest.fixture
def gated(cluster: Cluster, roles: None, tmp_path: Path) -> Iterator[Agent]:
    """An agent that serves metrics by HTTPS alone, to readers with the right; `status_port` is that of its probes."""
    cluster.authority.issue("metrics", "/CN=metrics", "IP:127.0.0.1")
    for ending in ("crt", "key"):
        shutil.copy(cluster.authority.folder / f"metrics.{ending}", tmp_path / f"tls.{ending}")
    flags = ["--metrics-certificate", str(tmp_path), "--metrics-readers", "authorized"]
    agent = Agent(cluster, cluster.nodes[0], flags=flags)
    agent.metrics_port = agent.status_port  # type: ignore[attr-defined]
    agent.status_port += 500
    agent.daemon.argv += ["--probe-address", f"127.0.0.1:{agent.status_port}"]
    yield agent.start()
    agent.stop()
    for found in agent.slices():
        cluster.api.delete("ResourceSlice", found["metadata"]["name"])
    shutil.rmtree(agent.data, ignore_errors=True)


def token_of(cluster: Cluster, namespace: str, account: str) -> str:
    """Return a token of a new ServiceAccount."""
    meta = {"name": account, "namespace": namespace}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    body: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = cluster.api.path("ServiceAccount", account, namespace)
    return str(cluster.api.call("POST", f"{path}/token", body)["status"]["token"])


def scrape(agent: Agent, token: str = "") -> tuple[int, str]:
    """Return the status and the text that a scrape over TLS gets."""
    context = ssl.create_default_context(cafile=str(agent.cluster.authority.folder / "ca.crt"))
    connection = http.client.HTTPConnection("127.0.0.1", agent.metrics_port, timeout=10)  # type: ignore[attr-defined]
    plain = agent.node.sandbox.connected(agent.metrics_port)  # type: ignore[attr-defined]
    try:
        connection.sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_api_server_decides_who_reads_and_is_asked_once_a_minute(
    cluster: Cluster, namespace: str, gated: Agent
) -> None:
    prometheus = token_of(cluster, namespace, "prometheus")
    unauthorized = token_of(cluster, namespace, "unauthorized")
    status, page = until("the page", lambda: found if (found := scrape(gated, prometheus))[0] == 200 else None, 30)
    assert status == 200
    assert "dra_driver_build_info" in page
    assert [scrape(gated, one)[0] for one in ("", "no-token", prometheus[:-4] + "AAAA", unauthorized)] == [
        401,
        401,
        401,
        403,
    ]
    before = len(cluster.audited("create", resource="tokenreviews"))
    assert [scrape(gated, prometheus)[0] for _ in range(10)] == [200] * 10
    assert len(cluster.audited("create", resource="tokenreviews")) == before
    # Nothing is ever served in the clear, and probes show no figures.
    assert gated.node.sandbox.fetch(gated.metrics_port, "/metrics").startswith("error")  # type: ignore[attr-defined]
    assert "dra_driver" not in gated.ask("/metrics")
    assert gated.ask("/healthz").startswith("ok")
