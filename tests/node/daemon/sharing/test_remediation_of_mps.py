"""A GPU that is shared by MPS is reset: its daemon is ended first, and the clients of another GPU's daemon go on."""

import pytest

from dra_driver.base.wire import SharedDevice
from dra_driver.node.mps.client import MpsClient, socket_path
from tests.node.daemon.support.mps_node import MpsMachine, mps_machine, prepared
from tests.node.daemon.support.nvidia_machine import names
from tests.support.mps.fake_mps import FakeClient
from tests.support.mps.parts import SETTINGS, processes_below
from tests.support.programs.static_program import build_static
from tests.support.waiting import until

pytestmark = pytest.mark.gcc


class MonitoredMpsMachine(MpsMachine):
    """Two H100 GPUs shared by MPS that report their health, and an agent that resets them."""

    def __init__(self, here, folder):
        super().__init__(here, folder)
        for gpu in self.gpus:
            gpu.report_health(recovery_action=0, persistence=0)
        self.write()
        self.smi = self.fake.root / "smi"
        build_static(self.fake.root / "usr/bin/nvidia-smi", log=self.smi)

    def start(self):
        flags = [f"--sharing-config={self.folder / 'rules.yaml'}", "--remediation=on", "--lease-namespace=default"]
        super(MpsMachine, self).start(*flags, f"--nvidia-driver-root={self.fake.root}")
        until(lambda: len(self.here.devices()) == 8, "four replicas of two GPUs")
        self.plugin = self.here.kubelet.wait_registered("gpu.nvidia.com")

    def share_of(self, gpu, name):
        shares = [one for one in sorted(self.here.devices()) if one.startswith(names(self.gpus)[gpu])]
        return self.claim(shares[0], name)


@pytest.fixture
def machine():
    with mps_machine(MonitoredMpsMachine) as it:
        yield it


def test_the_daemon_of_a_gpu_is_ended_before_its_reset_and_clients_of_other_gpus_go_on(machine):
    machine.start()
    other = machine.share_of(1, "other")
    prepared(machine, other)
    (of_other,) = machine.daemons.glob("d/*")
    client, kept = FakeClient(of_other / "pipe"), processes_below(of_other)
    # A daemon that was left behind, as happens when no supervisor runs while the last claim ends.
    faulty = machine.gpus[0]
    left = SharedDevice(names(machine.gpus)[0], faulty.facts["uuid"], faulty.minor, faulty.pci)
    MpsClient(socket_path(machine.daemons.parent)).start(left, SETTINGS, deadline_s=60)
    assert len(processes_below(machine.daemons)) > len(kept)
    (machine.fake.root / "smi.hold").touch()
    faulty.report_health(recovery_action=1)
    machine.write()
    until(machine.smi.exists, "the reset to begin")
    assert processes_below(machine.daemons) == kept, "a daemon has the GPU open while it is reset"
    assert client.works()
    machine.state = machine.state.read()
    machine.state.gpus[0].report_health(recovery_action=0)
    machine.write()
    (machine.fake.root / "smi.hold").unlink()
    until(lambda: "step=returned" in machine.here.log(), "the return")
    assert client.works()
