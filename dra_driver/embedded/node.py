"""Node: a whole embedded node with API, kubelet, scheduler, foreign drivers, and the real agent as a child process.

In: a profile. Out: a running node whose slices are published and whose plugin is registered. `stop` removes everything.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import MappingProxyType

from dra_driver.embedded.agent_process import AgentProcess
from dra_driver.embedded.api.kinds import SLICES
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.embedded.examples.run import ExampleRunner
from dra_driver.embedded.kubelet.foreign_plugin import ForeignPlugin, publish_slice
from dra_driver.embedded.kubelet.kubelet import EmbeddedKubelet
from dra_driver.embedded.scheduling.scheduler import EmbeddedScheduler
from dra_driver.hardware.simulated import load_profile
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.loading import load_credentials
from dra_driver.model.errors import DriverError, NodeError
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.wire import SliceWire, Wire
from dra_driver.mps.client import MpsClient, socket_path

READY_SECONDS = 40.0  # an idle machine needs one second, a busy one more
_DAEMON_SECONDS = 5.0
_SOCKET_ROOM = 40  # the longest path of a temporary folder, in characters, below which our sockets' paths still fit


class EmbeddedNode:
    """One node. `classes` are the DeviceClasses to create, and `mig` is the value of the agent's flag --mig.

    `sharing` is a sharing configuration: the agent is started with it, and an MPS supervisor runs beside the agent.
    `flags` are further flags of the agent, by name. In tests, `command` replaces the agent's command line.
    """

    def __init__(
        self,
        profile: str,
        *,
        classes: Sequence[Wire],
        version: str = "1.36",
        mig: str = "dynamic",
        sharing: Path | None = None,
        flags: Mapping[str, str] = MappingProxyType({}),
        command: Sequence[str] = (),
    ) -> None:
        self.profile = load_profile(profile)
        self.name = self.profile.node_name_of(0)
        self.driver = NVIDIA_DRIVER
        self.folder = _short_folder()
        self.api = EmbeddedApi(version=version)
        self._classes = classes
        self._version = version
        self._kube: KubeApi | None = None
        self._kubeconfig = self.folder / "kubeconfig"
        self._foreign: list[ForeignPlugin] = []
        self.kubelet = EmbeddedKubelet(self.folder, self.api, node=self.name)
        both = {
            "--kubelet-plugins-directory-path": str(self.kubelet.plugins_dir),
            "--hardware": f"simulated:{profile}",
        }
        own = self._own_flags(mig, sharing) | both | dict(flags)
        self.agent = AgentProcess(own, self.folder / "agent.log", command=command)
        supervisor = (sys.executable, "-m", "dra_driver", "mps")
        self._mps = AgentProcess(both, self.folder / "mps.log", command=supervisor) if sharing else None

    def _own_flags(self, mig: str, sharing: Path | None) -> dict[str, str]:
        """Return the flags that tell the agent where its node is, and how it offers the GPUs."""
        return ({"--sharing-config": str(sharing)} if sharing else {}) | {
            "--mig": mig,
            "--node-name": self.name,
            "--kubeconfig": str(self._kubeconfig),
            "--cdi-root": str(self.kubelet.cdi_dir),
            "--kubelet-registrar-directory-path": str(self.kubelet.registrar_dir),
            "--feature-file": str(self.feature_file),
        }

    @property
    def feature_file(self) -> Path:
        """The path of the node's labels, where the agent writes them."""
        return self.folder / "features.d" / "dra-driver"

    @property
    def ledger(self) -> Path:
        """The path of the agent's ledger."""
        return self.kubelet.plugins_dir / self.driver / "ledger.db"

    def start(self, progress: Callable[[str], None] = lambda _: None, *, timeout_s: float = READY_SECONDS) -> None:
        """Start everything and wait until the node is ready. Raises: NodeError with what did not start."""
        progress("starting a Kubernetes API and a kubelet")
        self.api.start()
        self.api.write_kubeconfig(self._kubeconfig)
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        for wire in self._classes:
            self.api.create(wire)
        self._kube = KubeApi(load_credentials(str(self._kubeconfig)))
        self.kubelet.start()
        for foreign in self.profile.foreign:
            publish_slice(self._kube, foreign.driver, self.name, foreign.devices)
            plugin = ForeignPlugin(
                foreign.driver, registrar_dir=self.kubelet.registrar_dir, plugins_dir=self.kubelet.plugins_dir
            )
            plugin.start()
            self._foreign.append(plugin)
            self.kubelet.wait_registered(foreign.driver, timeout_s)
        if self._mps:
            progress("starting the MPS supervisor")
            self._mps.start()
        progress("starting the agent as a process of its own")
        self.agent.start()
        progress("waiting for its ResourceSlices and its registration")
        self._await_ready(time.monotonic() + timeout_s)

    def slices(self) -> list[SliceWire]:
        """Return the agent's slices."""
        return [one for one in self.api.items(SLICES) if one["spec"]["driver"] == self.driver]

    def runner(self) -> ExampleRunner:
        """Return a runner for examples on this node, over HTTP. Raises: NodeError before `start`."""
        if self._kube is None:
            raise NodeError("not-started", "the embedded node has not been started")
        scheduler = EmbeddedScheduler(self._kube, node=self.name, kubernetes=self._version)
        return ExampleRunner(self._kube, self.kubelet, scheduler, ledger=self.ledger, feature_file=self.feature_file)

    def stop(self) -> int:
        """Stop everything and remove the folder; return the agent's exit status, or the supervisor's if that is 0."""
        status = self.agent.stop()
        if self._mps:
            with suppress(DriverError):  # the daemons of an interrupted example would outlive their supervisor
                MpsClient(socket_path(self.ledger.parent)).stop_unused(
                    lambda _: nullcontext(True), deadline_s=_DAEMON_SECONDS
                )
            status = status or self._mps.stop()
        for plugin in self._foreign:
            plugin.stop()
        self.kubelet.stop()
        if self._kube is not None:
            self._kube.close()
        self.api.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status

    def _await_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.agent.check()
            slices = self.slices()
            is_complete = bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]
            if is_complete and self.kubelet.plugins.plugins(self.driver):
                return
            time.sleep(0.02)
        errors = "; ".join(f"{path.name}: {text}" for path, text in self.kubelet.plugins.errors().items())
        what = f"slices: {len(self.slices())}, registered: {', '.join(self.kubelet.plugins.drivers())} {errors}"
        raise NodeError("not-ready", f"the agent was not ready in time ({what})", hint=self.agent.last_lines())


def _short_folder() -> Path:
    """Create a temporary folder whose path is short enough for unix sockets."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="dra-", dir=usual if len(usual) < _SOCKET_ROOM else "/tmp"))  # noqa: S108
