"""`dra-driver usage` without a Prometheus on 10,000 nodes: time and peak memory.

`python -m benchmarks --only usage`. A small Python server makes up the API server and the agents.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Report
from benchmarks.program_run import run_program
from benchmarks.usage.server import GPUS, NODES

SECONDS, MEBIBYTES = 60.0, 300.0


def run(report: Report) -> None:
    """Measure one run of the command."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.usage.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder, server:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(json.dumps(_config(server.stdout.readline().strip())))
        found = run_program([sys.executable, "-m", "dra_driver", "usage", "--kubeconfig", str(kubeconfig)])
        server.stdin.close()
    if found.status:
        raise RuntimeError(f"usage: status {found.status}")
    label = f"usage, the agents of {NODES:,} nodes with {GPUS} claims each"
    report.add(label, found.seconds, "s", budget=SECONDS)
    report.add(f"{label}, processor time", found.processor_s, "s")
    report.add(f"{label}, peak memory", found.peak_mib, "MiB", budget=MEBIBYTES)


def _config(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": url}}],
        "users": [{"name": "user", "user": {"token": "token"}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }
