"""The real agent sets time slices through a fake nvidia-smi below the driver root, one child process for a change."""

import os
import signal

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from tests.node.daemon.support.nvidia_machine import Machine, names
from tests.support.agents.agent_process import stage
from tests.support.programs.fake_nvidia_smi import FakeNvidiaSmi
from tests.support.waiting import until

pytestmark = pytest.mark.gcc
CONFIG = {
    "source": "FromClaim",
    "requests": [],
    "opaque": {
        "driver": NVIDIA_DRIVER,
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Medium"}},
        },
    },
}


@pytest.fixture
def machine(tmp_path):
    with stage() as here:
        yield Machine(here, tmp_path)


def test_an_interval_holds_through_a_killed_agent_and_ends_with_the_claim(machine, tmp_path):
    smi = FakeNvidiaSmi(tmp_path / "driver")
    flags = (f"--nvidia-driver-root={smi.root}", f"--nvidia-driver-root-mount={smi.root}")
    agent = machine.start(*flags)
    until(lambda: "registered" in machine.here.log(), "registration")
    until(lambda: len(machine.here.devices()) == 2, "both GPUs")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    gpu = machine.gpus[0]
    claim = machine.claim(names([gpu])[0], config=[CONFIG])
    assert len(plugin.prepare([claim])[claim.uid]) == 1
    assert smi.sets() == [(gpu.uuid, 2)]

    os.kill(agent.pid, signal.SIGKILL)
    agent.wait(60)
    machine.start(*flags)
    until(lambda: "registered" in machine.here.log(), "registration of the next agent")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: not isinstance(plugin.prepare([claim])[claim.uid], str), "the claim to be prepared again")
    assert smi.sets() == [(gpu.uuid, 2)]
    assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert smi.sets() == [(gpu.uuid, 2), (gpu.uuid, 0)]
    assert smi.level(gpu.uuid) == 0
