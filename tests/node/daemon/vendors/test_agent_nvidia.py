"""The real agent process on NVIDIA's GPUs: a fake library, a fake node, an embedded cluster."""

import json
import os
import signal
import time

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import CLAIMS, SLICES
from tests.node.daemon.support.nvidia_machine import Machine, names
from tests.support.agents.agent_process import stage
from tests.support.waiting import until

pytestmark = pytest.mark.gcc


@pytest.fixture
def machine(tmp_path):
    with stage() as here:
        yield Machine(here, tmp_path)


def published(machine):
    return set(machine.here.devices())


def test_gpus_are_published_and_a_claim_gets_its_nodes(machine):
    machine.start()
    until(lambda: published(machine) == set(names(machine.gpus)), "two GPUs")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    claim = machine.claim(names(machine.gpus)[1])
    ((device,),) = plugin.prepare([claim]).values()
    assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim={claim.uid}-{names(machine.gpus)[1]}",)
    (file,) = machine.here.kubelet.cdi_dir.glob("*.json")
    document = json.loads(file.read_text())
    nodes = {n["path"]: n for d in document["devices"] for n in d["containerEdits"]["deviceNodes"]}
    assert nodes["/dev/nvidia1"]["hostPath"] == f"{machine.node.roots.dev}/nvidia1"
    common = document["containerEdits"]
    assert "/dev/nvidiactl" in {n["path"] for n in common["deviceNodes"]}
    assert "NVIDIA_VISIBLE_DEVICES=void" in common["env"]
    assert plugin.unprepare([claim]) == {claim.uid: ""}
    assert not list(machine.here.kubelet.cdi_dir.iterdir())


def test_a_lost_gpu_leaves_the_slices_in_one_write(machine):
    machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    (before,) = machine.here.api.items(SLICES)
    machine.gpus[0].is_lost = True
    machine.write()
    until(lambda: published(machine) == set(names(machine.gpus[1:])), "the lost GPU gone")
    (after,) = machine.here.api.items(SLICES)
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1


def test_a_repartitioned_gpu_is_published_as_it_is_now(machine):
    machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    machine.gpus[0].set_mig(enabled=True)
    machine.gpus[0].partition("1g.10gb", 2)
    machine.write()
    name = f"{names(machine.gpus)[0]}-mig-1g10gb-19-2"
    until(lambda: published(machine) == {names(machine.gpus)[1], name}, "the partition")


@pytest.mark.long
def test_a_hanging_gpu_blocks_neither_another_gpu_nor_an_rpc_nor_the_exit(machine):
    agent = machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    machine.gpus[0].hang("nvmlDeviceGetMigMode")
    machine.write()
    time.sleep(0.5)
    claim = machine.claim(names(machine.gpus)[1])
    (answer,) = plugin.prepare([claim]).values()
    assert not isinstance(answer, str), answer
    until(lambda: published(machine) == {names(machine.gpus)[1]}, "the hanging GPU gone")
    assert machine.here.end(agent) == 0


def test_a_replaced_gpu_driver_needs_no_restart_of_the_pod(machine):
    agent = machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    machine.node.load_driver("590.44.01")
    machine.state.driver_version = "590.44.01"
    machine.write()

    def versions():
        return {
            d["attributes"]["driverVersion"]["version"]
            for s in machine.here.api.items(SLICES)
            for d in s["spec"].get("devices", ())
        }

    until(lambda: versions() == {"590.44.1"}, "the new driver's version")
    assert agent.poll() is None, "the agent process has ended"
    machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    assert machine.here.end(agent) == 0


def test_the_library_is_released_on_one_signal_and_opened_again_on_another(machine):
    agent = machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    agent.send_signal(signal.SIGUSR1)
    until(lambda: "vendor's library released" in machine.here.log(), "the library released")
    agent.send_signal(signal.SIGUSR2)
    machine.gpus[0].set_mig(enabled=True)
    machine.write()
    machine.gpus[0].partition("1g.10gb", 2)
    machine.write()
    name = f"{names(machine.gpus)[0]}-mig-1g10gb-19-2"
    until(lambda: published(machine) == {names(machine.gpus)[1], name}, "the change after resuming")


def test_claims_are_unprepared_while_the_gpu_driver_is_unloaded(machine):
    agent = machine.start()
    until(lambda: len(published(machine)) == 2, "two GPUs")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    claim = machine.claim(names(machine.gpus)[0])
    plugin.prepare([claim])
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    machine.node.unload_driver()
    for gpu in machine.gpus:
        machine.node.bind(gpu.pci, None)
    machine.library.unlink()
    machine.start()
    until(lambda: "registered" in machine.here.log(1), "registration of the second agent")
    plugin = machine.here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: plugin.unprepare([claim]) == {claim.uid: ""}, "unprepare")
    assert not list(machine.here.kubelet.cdi_dir.iterdir())
    assert machine.here.api.items(CLAIMS)
