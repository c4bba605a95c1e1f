"""An agent that starts where NVIDIA's driver made partitions on demand destroys those that were left behind."""

import json

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from tests.node.daemon.support.nvidia_machine import Machine
from tests.node.daemon.support.other_driver import Other, pod
from tests.support.agents.agent_process import stage
from tests.support.plugin.nvidia_checkpoint import write_checkpoint
from tests.support.waiting import until

pytestmark = pytest.mark.gcc
PART = "gpu-0-mig-1g10gb-19-0"
BOOT = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


@pytest.fixture
def machine(tmp_path):
    with stage("1.36") as here:
        yield Machine(here, tmp_path)


def test_a_partition_of_nvidias_driver_is_destroyed_once_its_claim_has_ended(machine):
    here, first = machine.here, machine.gpus[0]
    [ci] = first.partition("1g.10gb", 0)
    machine.write()
    other = Other(here)
    uid = other.run("old", PART)
    checkpoint = here.kubelet.plugins_dir / NVIDIA_DRIVER / "checkpoint.json"
    write_checkpoint(checkpoint, {uid: [(PART, ci.uuid, first.uuid)]}, boot_id=BOOT)
    other.leave()
    machine.start()
    of_one = 26  # whole, and 25 placements
    until(lambda: len(here.devices()) == of_one, "the devices of the other GPU")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    assert machine.state.read().gpus[0].gis, "destroyed before its claim has ended"
    here.kubelet.unprepare_pod(pod("old"))
    until(lambda: len(here.devices()) == 2 * of_one, "all devices of both GPUs")
    until(lambda: machine.state.read().gpus[0].facts["mig_mode"] == "0 0", "MIG mode to be off")
    assert machine.state.gpus[0].gis == []
    until(lambda: not checkpoint.exists(), "the checkpoint to be set aside")
    assert json.loads(checkpoint.with_name("checkpoint.json.ended").read_text())["v2"]["nodeBootID"] == BOOT
    assert f"partition that another driver made for an ended claim destroyed device={names(first)}" in here.log()


def names(gpu):
    return f"gpu-{gpu.pci.replace(':', '-').replace('.', '-')}-mig-1g10gb-19-0"
