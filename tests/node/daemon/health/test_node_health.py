"""The taints of a node's devices, when slices may show a new inventory, and clocks that are set meanwhile."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.node.daemon import node_health, node_remediation
from dra_driver.node.daemon.node_health import STALE_SECONDS, NodeHealth
from dra_driver.node.daemon.node_remediation import SLOT_KEPT_S, AgentRemediationNode
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.health.faults import Fault, FaultKey, HealthPolicy, Subject
from dra_driver.node.kubelet.methods import DeviceState
from tests.support.facts import FULL_GPU, facts
from tests.support.waiting import until

DOMAIN = "gpu.nvidia.com"
ONE, TWO = FULL_GPU, replace(FULL_GPU, uuid="GPU-2", pci_address="0000:66:00.0", minor=4)


class Reporter:
    """Hardware on which nothing is wrong."""

    def watch_health(self, notify, *, log_position):
        pass

    def health(self, *, is_urgent, patience_s):
        return HealthReport()

    def bus_states(self, gpus):
        return dict.fromkeys(gpus, BusState.HERE)

    def end_health(self):
        pass


class Slices:
    """The devices that slices show, decided anew with each change, as the agent does it; each decision is kept."""

    def __init__(self, inventory):
        self.inventory, self.taints, self.shown, self.health = inventory, {}, [], None

    def health_changed(self, taints):
        self.taints = taints
        self.validation_changed()

    def validation_changed(self):
        if self.health is not None and self.health.withheld(self.inventory.current) is not None:
            self.shown.append(
                {device.name: self.taints.get(device.name, ()) for device in self.inventory.current.devices}
            )


@pytest.fixture
def node(tmp_path):
    inventory = SimpleNamespace(current=build_inventory(facts(ONE)))
    slices = Slices(inventory)
    opened = SimpleNamespace(
        options=SimpleNamespace(node="node-1", driver=DOMAIN, data_dir=tmp_path),
        identity=SimpleNamespace(pool="pool", boot_id="boot-1"),
        api=None,
    )
    slices.health = health = NodeHealth(
        Reporter(), opened, policy=HealthPolicy(), slots=None, inventory=inventory, listener=slices,
        users=None, gate=None,
    )  # fmt: skip
    health.completed(facts(ONE, TWO))
    health.start()
    until(lambda: slices.shown, "the first slices")
    yield slices
    health.stop()


def test_no_slice_shows_the_devices_of_a_gpu_that_came_back_without_the_taints_of_its_faults(node):
    node.health.hold((Fault(FaultKey.REMEDIATION, Subject(TWO.pci_address), "reset", 1.0, 1.0),))
    node.inventory.current = build_inventory(facts(ONE, TWO))
    node.validation_changed()  # any other part of the agent decides, before the taints are computed again
    node.health.inventory_changed()
    seen = [shown[TWO.whole_name] for shown in node.shown if TWO.whole_name in shown]
    assert seen
    assert all(taint and taint[0].key == f"{DOMAIN}/remediation" for taint in seen)


@pytest.fixture(params=[3600, -3600, 10 * 365 * 86400])
def set_clock(request, monkeypatch):
    """Return a function that sets the clock that people read."""
    read = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: read() + request.param)


def test_a_clock_that_is_set_makes_no_monitor_stale_and_no_stale_one_current(node, set_clock, monkeypatch):
    until(lambda: not node.health.is_silent, "a turn of the monitor")
    set_clock()
    assert not node.health.is_silent
    assert {report.state for report in node.health.reports()} == {DeviceState.HEALTHY}
    node.health._monitor.stop()
    after = node_health.boot_time() + STALE_SECONDS + 1
    monkeypatch.setattr(node_health, "boot_time", lambda: after)
    assert node.health.is_silent
    assert {report.state for report in node.health.reports()} == {DeviceState.UNKNOWN}


def test_a_clock_that_is_set_neither_delays_nor_hurries_the_renewal_of_a_slot(set_clock, monkeypatch):
    renewed, now = [], [1000.0]
    monkeypatch.setattr(node_remediation, "boot_time", lambda: now[0])
    slots = SimpleNamespace(acquire=lambda holder: 0.0, renew=renewed.append)
    opened = SimpleNamespace(options=SimpleNamespace(node="node-1"), locks=None, ledger=None)
    parts = SimpleNamespace(inventory=None)
    slot = AgentRemediationNode(opened, None, parts, slots=slots, reboot=None, validation=None)
    slot.acquire_slot()
    set_clock()
    slot.renew_slot()
    assert renewed == []
    now[0] += SLOT_KEPT_S
    slot.renew_slot()
    assert renewed == ["node-1"]
