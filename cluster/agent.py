"""The driver's agent on a node of the cluster: the real process, under its ServiceAccount's node-bound token.

In: a cluster, a node, flags. Out: a running agent and what it left on the node. The process is never inspected from
inside: only what it serves and leaves behind counts.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.cluster import REPOSITORY, Cluster
from cluster.daemon import Daemon
from cluster.node import Node
from cluster.sandbox import until
from dra_driver.node.kubelet.sockets import is_refused

DRIVER = "gpu.nvidia.com"
NAMESPACE = "dra-driver"
ACCOUNT = "dra-driver-agent"

# DRA_DRIVER may hold the command line of another build of the driver, which is then tested instead of this tree's.
_PROGRAM = shlex.split(os.environ.get("DRA_DRIVER", "")) or [sys.executable, "-m", "dra_driver"]
_numbers = itertools.count(1)
_OF_HOURS = ("spans", "claim_totals")  # tables of the ledger whose rows outlive their claims


class Agent:
    """One agent process. Calling `start` again after `kill` does what a restarted pod does."""

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        *,
        hardware: str = "simulated:demo-h100",
        pod_uid: str = "",
        driver: str = DRIVER,
        mig: str = "static",
        is_named: bool = True,
        flags: Sequence[str] = (),
        program: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.node = node
        self.driver = driver
        number = next(_numbers)
        self.status_port = 9400 + number
        kubeconfig = cluster.node_kubeconfig(node.name, ACCOUNT, NAMESPACE)
        argv = [
            *(program or _PROGRAM),
            "agent",
            *("--node-name", node.name),
            *("--kubeconfig", str(kubeconfig)),
            *(("--driver-name", driver) if is_named else ()),
            *("--cdi-root", str(node.cdi)),
            *("--kubelet-registrar-directory-path", str(node.registry)),
            *("--kubelet-plugins-directory-path", str(node.plugins)),
            *("--hardware", hardware),
            *("--mig", mig),
            *("--metrics-address", f"127.0.0.1:{self.status_port}"),
            *(("--pod-uid", pod_uid) if pod_uid else ()),
            *flags,
        ]
        surroundings = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"} | (environment or {})
        self.daemon: Daemon = node.daemon(f"agent-{number}", argv, environment=surroundings)

    @property
    def data(self) -> Path:
        """Return the plugin's data folder."""
        return self.node.plugins / self.driver

    def start(self, seconds: float = 60) -> Agent:
        """Start the agent and wait until it reports that it is ready."""
        # The node may have been rebooted, so use its current mount namespace.
        self.daemon.mount = self.node.mounts
        self.daemon.start()

        def ready() -> bool:
            answer = self.ask("/readyz")
            assert answer.startswith("ok"), answer
            return True

        self.daemon.until("ready", ready, seconds)
        return self

    def stop(self) -> None:
        """End the agent by SIGTERM; it must exit with code 0 within 20 seconds."""
        code = self.daemon.stop(20)
        assert code == 0, f"the agent ended with {code} on SIGTERM:\n{self.daemon.tail()}"

    def kill(self) -> None:
        """End the agent by SIGKILL."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait(10)

    def command(self, *words: str) -> str:
        """Run one of the driver's commands on the node's own folder and return what it wrote; it must end with 0."""
        program = self.daemon.argv[: self.daemon.argv.index("agent")]
        daemon = self.node.daemon(
            f"{words[0]}-{self.status_port}",
            [*program, *words, "--kubelet-plugins-directory-path", str(self.node.plugins)],
            environment=self.daemon.environment,
        )
        daemon.start()
        assert daemon.wait(30) == 0, daemon.tail()
        return daemon.tail()

    def ask(self, path: str) -> str:
        """Return a page of the agent's status server."""
        return self.node.sandbox.fetch(self.status_port, path)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.ask("/metrics"), re.MULTILINE)
        return sum(float(value) for value in values)

    def slices(self) -> list[dict[str, Any]]:
        """Return the slices of this driver on this node."""
        selector = f"spec.nodeName={self.node.name},spec.driver={self.driver}"
        return self.cluster.api.list("ResourceSlice", fieldSelector=selector)

    def writes(self) -> list[dict[str, Any]]:
        """Return the accepted writes of slices of this node, by any agent, since the cluster was started.

        Dry runs are left out: they store nothing.
        """
        events = self.cluster.audited("create", "update", "patch", "delete")
        ours = f'"nodeName":"{self.node.name}"'
        return [
            event
            for event in events
            if event["responseStatus"]["code"] < 300
            and "dryRun" not in event["requestURI"]
            and ours in json.dumps(event, separators=(",", ":"))
        ]

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return the published devices by name."""
        return {device["name"]: device for found in self.slices() for device in found["spec"].get("devices") or []}

    def published(self, seconds: float = 30) -> list[dict[str, Any]]:
        """Wait until the pool is complete and return its slices."""

        def whole() -> list[dict[str, Any]]:
            found = self.slices()
            newest = max((item["spec"]["pool"]["generation"] for item in found), default=0)
            current = [item for item in found if item["spec"]["pool"]["generation"] == newest]
            complete = bool(current) and len(current) == current[0]["spec"]["pool"]["resourceSliceCount"]
            return current if complete else []

        return until(f"slices of {self.driver} on {self.node.name}", whole, seconds)

    def sockets(self) -> list[str]:
        """Return the names of this driver's sockets in the kubelet's folders."""
        own = [*self.node.registry.glob(f"{self.driver}*.sock"), *self.data.glob("*.sock")]
        return sorted(path.name for path in own)

    def cdi_files(self) -> list[Path]:
        """Return this driver's CDI files, finished or not."""
        return sorted(path for path in self.node.cdi.iterdir() if path.is_file())

    def ledger_rows(self) -> list[tuple[Any, ...]]:
        """Return every row of the ledger that refers to a claim, from all of its tables but two.

        Spans and totals record for how long claims were prepared: spans outlive their claims until they are added up,
        totals until they have been scraped. Other stores of the agent record GPUs, not claims.
        """
        rows: list[tuple[Any, ...]] = []
        for file in self.data.glob("ledger.db"):
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as ledger:
                names = [row[0] for row in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                for name in names:
                    columns = [row[1] for row in ledger.execute(f'PRAGMA table_info("{name}")')]
                    if name not in _OF_HOURS and any("uid" in column or "claim" in column for column in columns):
                        rows += [(name, *row) for row in ledger.execute(f'SELECT * FROM "{name}"')]
        return rows

    def check_slices(self) -> None:
        """Check that the pool is complete and that no slice of an earlier one is left."""
        current = self.published(15)
        left = {found["metadata"]["name"] for found in self.slices()} - {it["metadata"]["name"] for it in current}
        assert not left, f"slices of an earlier generation left: {sorted(left)}"

    def wait_empty(self, seconds: float = 30) -> None:
        """Wait until no claim is left on the node: no CDI file, no ledger row."""

        def empty() -> bool:
            assert not self.cdi_files(), f"CDI files left: {[path.name for path in self.cdi_files()]}"
            assert not self.ledger_rows(), f"ledger rows left: {self.ledger_rows()[:3]}"
            return True

        until(f"nothing of any claim left on {self.node.name}", empty, seconds)


def remove_dead_sockets(folder: Path) -> None:
    """Remove the sockets on which no process listens: a killed agent leaves its own until it is started again."""
    for path in folder.iterdir():
        if path.is_socket() and is_refused(path):
            path.unlink()
