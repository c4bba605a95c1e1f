"""The real agent and the real MPS supervisor: live clients through kills and upgrades of both, and nothing left."""

from __future__ import annotations

import json
import os
import signal

import pytest

from dra_driver.model.errors import NodeError
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.mps.client import MpsClient, socket_path
from tests.agent.test_agent_nvidia import Machine, names, until
from tests.support.agent_process import stage
from tests.support.fake_mps import FakeClient, FakeMps
from tests.support.mps.parts import SETTINGS, Supervisor, device, end_all, processes_below, unmount

pytestmark = pytest.mark.gcc
RULES = """\
version: rules/v1
rules:
  - replicas: 4
    sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: 4Gi}}
"""


class MpsMachine(Machine):
    """Two H100 shared by MPS, and a supervisor over a fake control program."""

    def __init__(self, here, folder):
        super().__init__(here, folder)
        (folder / "rules.yaml").write_text(RULES)
        self.fake = FakeMps(folder / "driver")
        hardware = ["--hardware", "nvidia", "--nvidia-driver-root", str(self.fake.root)]
        self.supervisor = Supervisor(here.kubelet.plugins_dir, hardware=hardware)
        self.supervisor.log = folder / "supervisor.log"
        self.daemons = here.kubelet.plugins_dir / NVIDIA_DRIVER / "mps"

    def start(self):
        agent = super().start("--sharing-config", str(self.folder / "rules.yaml"))
        until(lambda: "registered" in self.here.log(), "registration")
        until(lambda: len(self.here.devices()) == 8, "four replicas of two GPUs")
        self.plugin = self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    def claim_share(self, index, name):
        of_first = [one for one in sorted(self.here.devices()) if one.startswith(names(self.gpus)[0])]
        return self.claim(of_first[index], name)

    @property
    def mode(self):
        return self.state.read().gpus[0].facts.get("compute_mode", "0")

    @property
    def pipe(self):
        (path,) = self.daemons.glob("d/*/pipe")
        return path

    def is_empty(self):
        return not processes_below(self.daemons) and not list(self.daemons.glob("d/*")) and self.mode == "0"


@pytest.fixture
def machine(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounts of /dev/shm need root")
    with stage() as here:
        it = MpsMachine(here, tmp_path)
        it.supervisor.begin()
        try:
            yield it
        finally:
            it.supervisor.close()
            end_all(it.daemons)
            unmount(it.daemons)


def prepared(machine, claim):
    answers = []

    def ask():  # again, as the kubelet does: of an agent that was killed the connection is known for a moment
        try:
            answers[:] = machine.here.kubelet.wait_registered(NVIDIA_DRIVER).prepare([claim]).values()
        except NodeError as error:
            answers[:] = [str(error)]
        if "mps-no-permission" in str(answers):
            pytest.skip(f"mounts are not permitted here: {answers}")
        return not isinstance(answers[0], str)

    until(ask, "prepared", 30)
    (file,) = (path for path in machine.here.kubelet.cdi_dir.glob("*.json") if claim.uid in path.name)
    return [edit for one in json.loads(file.read_text())["devices"] for edit in one["containerEdits"].get("mounts", [])]


def test_two_claims_meet_behind_one_daemon_which_ends_with_the_last(machine):
    machine.start()
    first, second = machine.claim_share(0, "first"), machine.claim_share(1, "second")
    folders = prepared(machine, first)
    assert {mount["containerPath"]: mount["hostPath"] for mount in folders} == {
        "/tmp/nvidia-mps": str(machine.pipe),
        "/dev/shm": str(machine.pipe.parent / "shm"),
    }
    assert prepared(machine, second) == folders
    client = FakeClient(machine.pipe)
    assert (client.percentage, client.memory_mib, machine.mode) == (50.0, 4096, "3")
    assert machine.plugin.unprepare([first]) == {first.uid: ""}
    assert client.works()
    client.end()
    assert machine.plugin.unprepare([second]) == {second.uid: ""}
    assert machine.is_empty()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["upgrade", "OOM kill"])
def test_no_client_notices_the_end_of_agent_or_supervisor(machine, number):
    agent = machine.start()
    first = machine.claim_share(0, "first")
    prepared(machine, first)
    client = FakeClient(machine.pipe)
    before = processes_below(machine.daemons)
    machine.here.end(agent, number)
    machine.supervisor.end(number)
    assert client.works()
    machine.supervisor.begin()
    machine.start()
    assert client.works()
    prepared(machine, first)
    prepared(machine, machine.claim_share(1, "second"))
    assert processes_below(machine.daemons) == before
    assert FakeClient(machine.pipe).server_pid == client.server_pid


def test_a_claim_waits_for_a_supervisor_and_is_told_so(machine):
    machine.start()
    machine.supervisor.end()
    claim = machine.claim_share(0, "early")
    (answer,) = machine.plugin.prepare([claim]).values()
    assert "sharing.mps-unavailable" in answer
    assert "dra-driver mps" in answer
    assert machine.mode == "0"
    machine.supervisor.begin()
    prepared(machine, claim)
    assert machine.mode == "3"


@pytest.mark.parametrize("fault", ["start refuse No GPU for MPS", "get_server_list hang"])
def test_a_daemon_that_does_not_come_up_fails_the_claim_and_leaves_nothing(machine, fault):
    machine.start()
    machine.fake.break_(fault)
    claim = machine.claim_share(0, "claim")
    (answer,) = machine.plugin.prepare([claim]).values()
    assert "sharing.mps-" in answer
    assert processes_below(machine.daemons) == []
    machine.fake.heal()
    assert machine.plugin.unprepare([claim]) == {claim.uid: ""}
    assert machine.is_empty()


def test_a_daemon_without_a_claim_is_ended_by_the_agent(machine):
    stray = device(7)
    try:
        MpsClient(socket_path(machine.daemons.parent)).start(stray, SETTINGS, deadline_s=10)
    except Exception as error:
        pytest.skip(f"no daemon can be started here: {error}")
    assert processes_below(machine.daemons)
    machine.start()
    until(machine.is_empty, "the stray daemon gone")
