"""One of eight GPUs is reset: how the other seven and their pods are affected, with a fake library of the driver."""

import os
import threading

import grpc
import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node._proto import dra_health_v1alpha1_pb2 as messages
from dra_driver.simulator.store import SLICES
from tests.node.daemon.support.nvidia_machine import Machine, names
from tests.support.agents.agent_process import stage
from tests.support.fake_nvml import hgx_h100
from tests.support.programs.static_program import build_static
from tests.support.waiting import until

pytestmark = [
    pytest.mark.gcc,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a process's root"),
]


class MachineOfEight(Machine):
    """Eight H100 GPUs that report their health, and an agent that resets them by a program below a driver root."""

    def __init__(self, here, folder):
        super().__init__(here, folder)
        for gpu in hgx_h100(8)[2:]:
            self.node.add_gpu(gpu.pci, gpu.minor)
            self.gpus.append(gpu)
            self.state.gpus.append(gpu)
        for gpu in self.gpus:
            gpu.report_health(recovery_action=0, persistence=1)
        self.write()
        self.calls, self.root = folder / "calls", folder / "driver"
        build_static(self.root / "usr/bin/nvidia-smi", log=self.root / "smi")

    def start(self, *flags):
        environment = {
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "FAKE_NVML_STATE": str(self.folder / "state"),
            "FAKE_NVML_LOG": str(self.calls),
            "FAKE_NVML_PROC": self.node.roots.proc,
        }
        roots = [f"--sysfs-root={self.node.roots.sys}", f"--proc-root={self.node.roots.proc}"]
        roots += [f"--dev-root={self.node.roots.dev}", f"--nvidia-driver-root={self.root}"]
        flags = (*roots, "--remediation=on", "--lease-namespace=default", *flags)
        agent = self.here.start("auto", *flags, environment=environment)
        self.plugin = self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    def library_calls(self, pid):
        return [line.split()[1] for line in self.calls.read_text().splitlines() if line.startswith(f"{pid} ")]

    def persistence(self, index):
        return self.state.read().gpus[index].facts["persistence"]

    def reported(self, socket):
        """Return the health of each device as the agent reports it to the kubelet: 1 healthy, 2 unhealthy."""
        channel = grpc.insecure_channel(f"unix:{socket}")
        call = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        try:
            lists = call(messages.NodeWatchResourcesRequest(), timeout=60)
            return {one.device.device_name: one.health for one in next(lists).devices}
        finally:
            channel.close()


@pytest.fixture
def machine(tmp_path):
    with stage("1.36") as here:
        yield MachineOfEight(here, tmp_path)


def devices(machine):
    """Return each published device as its slice lists it, by its name."""
    slices = [s for s in machine.here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {one["name"]: one for s in slices for one in s["spec"].get("devices", ())}


def test_the_reset_of_one_gpu_leaves_the_other_seven_in_service_and_only_delays_new_partitions(machine):
    agent = machine.start("--mig=dynamic")
    faulty, *healthy = names(machine.gpus)
    until(lambda: set(names(machine.gpus)) <= set(devices(machine)), "eight GPUs")
    holder = machine.claim(healthy[0], "holder")
    assert not isinstance(machine.plugin.prepare([holder])[holder.uid], str)
    socket = next((machine.here.kubelet.plugins_dir / NVIDIA_DRIVER).glob("dra*.sock"))
    before = {name: one for name, one in devices(machine).items() if not name.startswith(faulty)}

    (machine.root / "smi.hold").touch()
    machine.gpus[0].report_health(recovery_action=1, persistence=1)
    machine.gpus[0].xid(95)
    machine.write()
    until((machine.root / "smi").exists, "the reset to begin")
    calls = machine.library_calls(agent.pid)
    assert calls[-1] == "nvmlShutdown", "the agent has the GPU open while it is reset"
    assert machine.persistence(0) == "0"
    assert machine.persistence(1) == "1"

    whole = machine.claim(healthy[1], "whole")
    assert not isinstance(machine.plugin.prepare([whole])[whole.uid], str), "a whole GPU waits for the library"
    assert machine.plugin.unprepare([holder]) == {holder.uid: ""}
    part, answers = machine.claim(f"{healthy[2]}-mig-1g10gb-19-0", "part"), {}
    asking = threading.Thread(target=lambda: answers.update(machine.plugin.prepare([part])))
    asking.start()
    asking.join(1.0)
    assert asking.is_alive(), "a partition was made while the library was released"
    assert {name: one for name, one in devices(machine).items() if not name.startswith(faulty)} == before
    reported = machine.reported(socket)
    assert {name: health for name, health in reported.items() if health != 1 and not name.startswith(faulty)} == {}
    assert reported[faulty] == 2
    assert machine.library_calls(agent.pid) == calls, "the library was used while the GPU was reset"

    machine.state = machine.state.read()
    machine.state.gpus[0].report_health(recovery_action=0)
    machine.write()
    (machine.root / "smi.hold").unlink()
    asking.join(60)
    assert not isinstance(answers[part.uid], str), answers
    until(lambda: "step=returned" in machine.here.log(), "the return")
    until(lambda: not devices(machine)[faulty].get("taints"), "no taint")
    assert machine.persistence(0) == "1"
    assert (machine.root / "smi").read_text() == f"--gpu-reset -i {machine.gpus[0].facts['uuid']} env=0 root=1\n"
