"""The doctor where the chart has its defaults: it finds nothing wrong, in the agent's pod and from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from cluster.chart import CHART, NAMESPACE, Chart
from cluster.cluster import REPOSITORY, Cluster

DRIVER = "gpu.example.com"


def test_a_healthy_node_with_the_chart_has_no_findings(cluster: Cluster) -> None:
    chart = Chart(cluster)
    more = ("--set", "fullnameOverride=second", "--set", f"driverName={DRIVER}", "--set", "deviceClasses.create=false")
    options = ["--install", "--create-namespace", "--wait", "--timeout", "120s"]
    try:
        chart.helm("upgrade", "second", str(CHART), *options, *chart.values(cluster.nodes[0]), *more)
        command = [sys.executable, "-m", "dra_driver", "doctor", "--only", "cluster", "-o", "json"]
        command += ["--kubeconfig", str(cluster.kubeconfig), "--driver-name", DRIVER]
        surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
        report = json.loads(done.stdout)
        assert (done.returncode, report["isClean"], report["unseen"]) == (0, True, []), report
        [pod] = cluster.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=agent")
        own = json.loads(chart.run(pod["metadata"]["name"], "/usr/bin/dra-driver", "doctor", "-o", "json"))
        assert (own["isClean"], "registration" in own["lookedAt"]) == (True, True), own
    finally:
        chart.helm("uninstall", "second", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "60s")
