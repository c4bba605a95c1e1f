"""The harness itself: a cluster started by hand can be used, and however a cluster ends, nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import workload
from cluster.cluster import REPOSITORY, Cluster, process
from cluster.sandbox import CGROUPS, Sandbox, until
from cluster.stage import PATIENCE

VERSION = os.environ.get("K8S", "1.35")
HELD = f"""
import time
from cluster.cluster import Cluster
with Cluster(version={VERSION!r}) as cluster:
    print(cluster.sandbox.root, flush=True)
    time.sleep(600)
"""


def by_hand(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=180)


def check_nothing_left(sandbox: Sandbox, pids: list[int]) -> None:
    """Check that folder, processes, namespaces, mounts and cgroups are gone."""
    assert not sandbox.root.exists()
    until("its processes are gone", lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], 10)
    assert str(sandbox.root) not in Path("/proc/self/mountinfo").read_text()
    assert not list(Path("/run/netns").glob(f"{sandbox.name}*"))
    assert not list(CGROUPS.glob(f"**/{sandbox.name}"))


def test_a_killed_run_leaves_nothing_once_the_next_has_begun() -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        sandbox = Sandbox(Path(run.stdout.readline().strip()))
        pids = sandbox.pids()
        assert len(pids) > 7, "etcd, API server, scheduler, controllers, relay, containerd, kubelet"
        # A run that is still going on is left alone.
        Cluster.sweep()
        assert sandbox.root.exists()
        run.send_signal(signal.SIGKILL)
    Cluster.sweep()
    check_nothing_left(sandbox, pids)


@pytest.mark.smoke
def test_a_cluster_that_is_started_by_hand_has_the_driver_and_runs_pods() -> None:
    said = by_hand("up", "--k8s", VERSION, "--agent", "demo-h100").stdout
    found = dict(re.findall(r"^export (\w+)=(.+)$", said, re.MULTILINE))
    sandbox = Sandbox(Path(found["KUBECONFIG"]).parents[1])
    # No test run may remove a person's cluster; this one is marked as ours in case this run is killed.
    Cluster.sweep()
    (sandbox.root / "owner").write_text(process(os.getpid()))
    try:
        pids = sandbox.pids()
        (slice_,) = kubectl(found, "get", "resourceslices", "-o", "json")["items"]
        assert slice_["spec"]["driver"] == "gpu.nvidia.com"
        objects = [
            workload.template("default", "one-gpu", workload.devices(workload.request("gpu"))),
            workload.pod("default", "user", workload.container("main", "gpu"), templates={"gpu": "one-gpu"}),
        ]
        for content in objects:
            kubectl(found, "apply", "-o", "json", "-f", "-", stdin=json.dumps(content))
        until("the pod runs", lambda: phase(found) == "Running", PATIENCE)
    finally:
        by_hand("down", str(sandbox.root))
    check_nothing_left(sandbox, pids)


def kubectl(exported: dict[str, str], *arguments: str, stdin: str = "") -> Any:
    path = exported["PATH"].replace("$PATH", os.environ["PATH"])
    environment = os.environ | {"KUBECONFIG": exported["KUBECONFIG"], "PATH": path}
    command = ["kubectl", *arguments]
    done = subprocess.run(command, env=environment, check=True, input=stdin, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


def phase(exported: dict[str, str]) -> str:
    return str(kubectl(exported, "get", "pod", "user", "-o", "json")["status"].get("phase"))
