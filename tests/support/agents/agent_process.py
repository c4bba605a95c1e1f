"""A real agent process on a stand-in cluster, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.store import SLICES
from tests.support.agents.warm_agents import WarmAgent, forker

NODE = "node-1"
Agent = subprocess.Popen[bytes] | WarmAgent


def _fresh(words: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "dra_driver", *words]
        return subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})


class Stage:
    """One node's folders, API and kubelet, and the agents that run on it."""

    def __init__(self, folder: Path, api: EmbeddedApi, kubelet: EmbeddedKubelet) -> None:
        self.folder, self.api, self.kubelet = folder, api, kubelet
        self.agents: list[Agent] = []

    def start(
        self, hardware: str, *flags: str, environment: dict[str, str] | None = None, is_warm: bool = True
    ) -> Agent:
        """Start an agent; its log is agent-<n>.log.

        An agent that is not `is_warm`, or that has variables for Python itself, is started as a new program: only what
        it has loaded itself is in memory.
        """
        words = ["agent", "--node-name", NODE, "--hardware", hardware]
        words += ["--kubeconfig", str(self.folder / "kubeconfig"), "--cdi-root", str(self.kubelet.cdi_dir)]
        words += ["--kubelet-registrar-directory-path", str(self.kubelet.registrar_dir)]
        words += ["--kubelet-plugins-directory-path", str(self.kubelet.plugins_dir), *flags]
        path = self.folder / f"agent-{len(self.agents)}.log"
        variables = environment or {}
        warm = is_warm and not any(name.startswith("PYTHON") for name in variables)
        self.agents.append((forker().start if warm else _fresh)(words, path, variables))
        return self.agents[-1]

    def log(self, index: int = -1) -> str:
        """Return what an agent has logged so far."""
        return (self.folder / f"agent-{index % len(self.agents)}.log").read_text()

    def devices(self) -> list[str]:
        """Return the names of the published devices of our driver."""
        slices = [s for s in self.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
        return [d["name"] for s in slices for d in s["spec"].get("devices", ())]

    def has_whole_pool(self) -> bool:
        """Return whether every slice of our driver's pool is there, all of one generation."""
        pools = [s["spec"]["pool"] for s in self.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
        return len({p["generation"] for p in pools}) == 1 and len(pools) == pools[0]["resourceSliceCount"]

    def end(self, agent: Agent, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal an agent and wait for its end."""
        agent.send_signal(number)
        return agent.wait(60)


@contextmanager
def stage(version: str = "1.35", *, parent: str | None = None) -> Iterator[Stage]:
    """Yield a stage with a Node object and an API; every agent is ended with it."""
    folder = Path(tempfile.mkdtemp(prefix="dra", dir=parent))
    with EmbeddedApi(version=version) as api:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        api.write_kubeconfig(folder / "kubeconfig")
        kubelet = EmbeddedKubelet(folder, api, node=NODE)
        kubelet.start()
        it = Stage(folder, api, kubelet)
        try:
            yield it
        finally:
            for agent in it.agents:
                if agent.poll() is None:
                    agent.kill()
                    agent.wait()
            kubelet.stop()
            shutil.rmtree(folder, ignore_errors=True)
