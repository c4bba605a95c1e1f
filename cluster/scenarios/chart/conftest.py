"""A cluster into which the chart is installed; what a scenario leaves behind is a fault."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cluster.chart import Chart
from cluster.cluster import Cluster
from cluster.components import parts, programs
from cluster.sandbox import until
from cluster.stage import Stage


@pytest.fixture(scope="session")
def chart_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without the driver, which admits privileged pods only where a label allows them."""
    try:
        programs.helm()
    except parts.BinariesMissing as missing:
        pytest.skip(str(missing))
    version, gates = os.environ.get("K8S", "1.35"), os.environ.get("GATES") != "default"
    with Cluster(version=version, gates=gates, pod_security="baseline") as started:
        yield started
        if request.session.testsfailed:
            started.keep_logs()


@pytest.fixture(scope="session")
def chart(chart_cluster: Cluster) -> Chart:
    return Chart(chart_cluster)


@pytest.fixture(autouse=True)
def nothing_left(chart: Chart) -> Iterator[None]:
    yield
    api = chart.cluster.api
    # A failed scenario leaves pods, which have to end while there is still an agent.
    for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
        api.call("DELETE", api.path(kind, namespace="default"))
    until("no pod left", lambda: not api.list("Pod", "default"), 90)
    chart.helm("uninstall", "dra-driver", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "60s")
    until("the kubelet to drop the slices", lambda: not chart.slices(chart.cluster.nodes[0]), 60)


@pytest.fixture
def stage(chart_cluster: Cluster) -> Stage:
    return Stage(chart_cluster, chart_cluster.nodes[0], "default")
