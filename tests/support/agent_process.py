"""A real agent process under a stand-in cluster, for tests."""

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

from dra_driver.embedded.api.kinds import SLICES
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.embedded.kubelet.kubelet import EmbeddedKubelet
from dra_driver.model.names import NVIDIA_DRIVER

NODE = "node-1"


class Stage:
    """One node's folders, API and kubelet, and the agents that run on it."""

    def __init__(self, folder: Path, api: EmbeddedApi, kubelet: EmbeddedKubelet) -> None:
        self.folder, self.api, self.kubelet = folder, api, kubelet
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, hardware: str, *flags: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start an agent; its log is agent-<n>.log."""
        command = [sys.executable, "-m", "dra_driver", "agent", "--node-name", NODE, "--hardware", hardware]
        command += ["--kubeconfig", str(self.folder / "kubeconfig"), "--cdi-root", str(self.kubelet.cdi_dir)]
        command += ["--kubelet-registrar-directory-path", str(self.kubelet.registrar_dir)]
        command += ["--kubelet-plugins-directory-path", str(self.kubelet.plugins_dir), *flags]
        with (self.folder / f"agent-{len(self.agents)}.log").open("wb") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        self.agents.append(agent)
        return agent

    def log(self, index: int = -1) -> str:
        """Return what an agent has logged so far."""
        return (self.folder / f"agent-{index % len(self.agents)}.log").read_text()

    def devices(self) -> list[str]:
        """Return the names of the published devices of our driver."""
        slices = [s for s in self.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
        return [d["name"] for s in slices for d in s["spec"].get("devices", ())]

    def end(self, agent: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> int:
        """Signal an agent and wait for its end."""
        agent.send_signal(number)
        return agent.wait(30)


@contextmanager
def stage(version: str = "1.35") -> Iterator[Stage]:
    """Yield a stage with a Node object and an API; every agent is ended with it."""
    folder = Path(tempfile.mkdtemp(prefix="dra"))
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
