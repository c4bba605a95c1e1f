"""The real agent and the real MPS supervisor: clients survive kills and upgrades of both, and nothing is left."""

from __future__ import annotations

import signal

import pytest

from dra_driver.node.mps.client import MpsClient, socket_path
from tests.node.daemon.support.mps_node import MpsMachine, mps_machine, prepared
from tests.support.mps.fake_mps import FakeClient
from tests.support.mps.parts import SETTINGS, device, processes_below
from tests.support.waiting import until

pytestmark = pytest.mark.gcc


@pytest.fixture
def machine():
    with mps_machine(MpsMachine) as it:
        yield it


def test_two_claims_share_one_daemon_which_ends_with_the_last_of_them(machine):
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
def test_clients_go_on_when_the_agent_and_the_supervisor_end(machine, number):
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


def test_a_claim_is_refused_with_a_hint_until_a_supervisor_runs(machine):
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
def test_a_daemon_that_does_not_start_fails_the_claim_and_leaves_nothing(machine, fault):
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
        MpsClient(socket_path(machine.daemons.parent)).start(stray, SETTINGS, deadline_s=60)
    except Exception as error:
        pytest.skip(f"no daemon can be started here: {error}")
    assert processes_below(machine.daemons)
    machine.start()
    until(machine.is_empty, "the stray daemon gone")
