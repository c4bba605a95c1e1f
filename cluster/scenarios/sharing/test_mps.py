"""Two pods under MPS on one GPU: one daemon for both, which outlives agent and supervisor, and ends with the pods."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY
from cluster.daemon import Daemon
from cluster.machines.nvml_machine import NvmlMachine
from cluster.node import Node
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import SHOW, STAY, container, devices, pod, request, template
from dra_driver.base.errors import DriverError
from dra_driver.node.mps.client import MpsClient, socket_path
from tests.support.mps.fake_mps import FakeClient, FakeMps
from tests.support.mps.parts import processes_below

RULES = """\
version: rules/v1
rules:
  - replicas: 4
    sharing:
      strategy: MPS
      mpsConfig: {defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: 4Gi, multiUser: true}
"""
MEET = 'test -S /tmp/nvidia-mps/control && export FOUND=channel; exec 9>"/dev/shm/$HOSTNAME"; '
LIST = 'for file in /dev/shm/*; do echo "met $file"; done; '


@dataclass(frozen=True, slots=True)
class MpsNode:
    """An agent whose GPUs are shared by MPS, and the supervisor beside it."""

    agent: Agent
    supervisor: Daemon
    machine: NvmlMachine | None

    @property
    def folder(self) -> Path:
        return self.agent.data / "mps"

    def begin(self) -> None:
        self.supervisor.mount = self.agent.node.mounts
        self.supervisor.start()
        self.supervisor.until("answers", self.answers, 30)

    def answers(self) -> bool:
        with suppress(DriverError):
            self.daemons()
            return True
        return False

    def daemons(self) -> list[str]:
        return [one.device for one in MpsClient(socket_path(self.agent.data)).running(deadline_s=5)]

    def compute_modes(self) -> set[str]:
        """Return the current compute modes of the fake library's GPUs; those of simulated GPUs are not known."""
        gpus = self.machine.state.read().gpus if self.machine else []
        return {gpu.facts.get("compute_mode", "0") for gpu in gpus}


@pytest.fixture(params=["simulated", "nvml"])
def mps_node(
    request: pytest.FixtureRequest, node: Node, start_agent: Callable[..., Agent], tmp_path: Path
) -> Iterator[MpsNode]:
    """An agent and its supervisor, of two kinds: simulated, and the real vendor over a fake library.

    The real vendor comes with a fake MPS control program.
    """
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    flags = ["--sharing-config", str(rules)]
    if request.param == "simulated":
        machine, hardware = None, ["--hardware", "simulated:demo-h100"]
        agent = start_agent(flags=flags)
    else:
        machine = NvmlMachine(tmp_path)
        hardware = ["--hardware", "nvidia", "--nvidia-driver-root", str(FakeMps(tmp_path / "driver").root)]
        agent = start_agent(hardware="nvidia", flags=[*machine.flags, *flags], environment=machine.environment)
    argv = [sys.executable, "-m", "dra_driver", "mps", "--kubelet-plugins-directory-path", str(node.plugins), *hardware]
    supervisor = node.daemon("mps", argv, environment={"PYTHONPATH": str(REPOSITORY)})
    made = MpsNode(agent, supervisor, machine)
    made.begin()
    agent.published()
    yield made
    supervisor.stop()
    assert processes_below(made.folder) == [], "MPS daemons left after all pods"


def test_two_pods_run_under_mps_on_one_gpu_and_leave_nothing(mps_node: MpsNode, stage: Stage) -> None:
    agent = mps_node.agent
    of_gpus = [one for one in agent.devices().values() if one["attributes"]["type"]["string"] == "gpu-share"]
    uuid = min(one["attributes"]["uuid"]["string"] for one in of_gpus)
    only = f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'
    stage.create(template(stage.namespace, "share", devices(request("share", "gpu-share-mps.nvidia.com", only))))
    for name in ("first", "second"):
        main = container("main", "share", script=MEET + LIST + SHOW + STAY)
        stage.create(pod(stage.namespace, name, main, templates={"share": "share"}))
        stage.check(name)
        seen = stage.seen(name)
        assert seen.environment["FOUND"] == "channel"
        assert {"/tmp/nvidia-mps", "/dev/shm"} <= seen.mounts
    assert {"met /dev/shm/first", "met /dev/shm/second"} <= set(stage.log("second", "main").splitlines())
    (daemon,) = processes_below(mps_node.folder)
    assert len(mps_node.daemons()) == 1
    (pipe,) = mps_node.folder.glob("d/*/pipe")
    client = FakeClient(pipe, root=f"/proc/{mps_node.supervisor.pid}/root")
    assert (client.percentage, client.memory_mib) == (50.0, 4096)
    assert mps_node.machine is None or "3" in mps_node.compute_modes()

    agent.kill()
    assert client.works()
    agent.start()
    agent.published()
    mps_node.supervisor.signal(signal.SIGKILL)
    mps_node.supervisor.wait(10)
    assert client.works()
    mps_node.begin()
    assert client.works()
    assert daemon in processes_below(mps_node.folder)

    stage.delete_pod("first")
    assert client.works(), "the other pod still has the GPU"
    stage.delete_pod("second")
    agent.wait_empty(5)
    assert not client.works()
    assert processes_below(mps_node.folder) == []
    assert mps_node.daemons() == []
    assert list(mps_node.folder.glob("d/*")) == []
    assert mps_node.compute_modes() <= {"0"}


@pytest.mark.parametrize("mps_node", ["simulated"], indirect=True)
def test_a_pod_waits_for_a_supervisor_and_a_claim_deleted_early_leaves_no_daemon(
    mps_node: MpsNode, stage: Stage
) -> None:
    mps_node.supervisor.stop()
    stage.create(template(stage.namespace, "share", devices(request("share", "gpu-share-mps.nvidia.com"))))
    stage.create(pod(stage.namespace, "user", container("main", "share"), templates={"share": "share"}))
    message = until("the event says what is missing", lambda: _events(stage, "sharing.mps-unavailable"), 60)
    assert "dra-driver mps" in message
    mps_node.begin()
    stage.check("user")
    mps_node.agent.kill()
    stage.cluster.api.call("DELETE", stage.cluster.api.path("ResourceClaim", namespace=stage.namespace))
    stage.cluster.api.delete("Pod", "user", stage.namespace)
    mps_node.agent.start()
    mps_node.agent.wait_empty(90)
    until("no daemon is left", lambda: processes_below(mps_node.folder) == [], 90)


def _events(stage: Stage, word: str) -> str:
    found = stage.cluster.api.list("Event", stage.namespace)
    return next((str(event.get("message", "")) for event in found if word in str(event.get("message", ""))), "")
