"""Changes that the agent made itself are known without a discovery, and nothing else is overlooked."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.facts import Problem
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.slices.scanner import InventoryInputs, NodeInventory, OwnChanges, Scanner

ON_DEMAND = MigPolicy(is_dynamic=True)


class OnDemand:
    """Offers every GPU for partitions on demand, as if every partition were the agent's own."""

    is_settled = True

    def fingerprint(self):
        return None

    def assess(self, facts):
        uuids = frozenset(p.uuid for gpu in facts.gpus for p in gpu.partitions)
        return InventoryInputs(facts, replace(ON_DEMAND, ownership=replace(ON_DEMAND.ownership, uuids=uuids)))


class Bench:
    """A scanner over simulated GPUs, one turn at a time."""

    def __init__(self, folder) -> None:
        self.hardware = SimulatedHardware("dgx-h100", Roots(), node_name="n", state_dir=folder)
        self.inventory = NodeInventory()
        self.reported, self.own_changes = [], OwnChanges()
        self.scanner = Scanner(
            self.hardware,
            self.inventory,
            OnDemand(),
            own_changes=self.own_changes,
            listener=SimpleNamespace(inventory_changed=lambda: self.reported.append(self.inventory.current)),
        )
        self.turn()

    def turn(self) -> None:
        self.scanner._step()

    def gpu(self, index: int = 0):
        return self.hardware.discover().gpus[index]

    def make(self, index: int = 0, start: int = 0, *, is_own: bool = True):
        gpu = self.gpu(index)
        with self.own_changes.change(gpu) if is_own else nullcontext():
            self.hardware.set_mig_mode(gpu, True, 5)
            profile = next(p for p in gpu.mig_profiles if p.name == "1g.10gb")
            return self.hardware.create_partition(gpu, profile, start, 5).facts

    def destroy(self, made, index: int = 0) -> None:
        gpu = self.gpu(index)
        with self.own_changes.change(gpu):
            self.hardware.destroy_partition(gpu, made.uuid, 5)
            self.hardware.set_mig_mode(gpu, False, 5)

    def known(self):
        return [d.partition.uuid for d in self.inventory.current.devices if d.partition]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_hundred_partitions_made_and_destroyed_start_no_discovery_and_are_known_at_the_next_probe(bench):
    for number in range(100):
        made = bench.make(number % 8)
        bench.turn()
        assert bench.known() == [made.uuid]
        assert bench.scanner._facts == bench.hardware.discover()
        bench.destroy(made, number % 8)
        bench.turn()
        assert bench.known() == []
        assert bench.scanner._facts == bench.hardware.discover()
    assert bench.scanner.scans == 1


def test_a_change_that_the_agent_did_not_make_is_discovered(bench):
    made = bench.make(is_own=False)
    bench.turn()
    assert (bench.scanner.scans, bench.known()) == (2, [made.uuid])


def test_a_change_of_somebody_else_beside_an_own_one_is_discovered(bench):
    made = [bench.make(0), bench.make(1, is_own=False)]
    bench.turn()
    assert bench.scanner.scans == 2
    assert bench.known() == [one.uuid for one in made]


def test_an_own_change_explains_one_probe_and_no_later_one(bench):
    bench.make()
    bench.turn()
    bench.make(start=3, is_own=False)
    bench.turn()
    assert bench.scanner.scans == 2


def test_every_probe_during_an_own_change_knows_of_it(bench):
    """Switching a mode and making a partition may take many seconds, and the hardware is probed every two."""
    gpu = bench.gpu()
    with bench.own_changes.change(gpu):
        bench.turn()
        bench.hardware.set_mig_mode(gpu, True, 5)
        bench.turn()
        made = bench.make()
        bench.turn()
    assert (bench.scanner.scans, bench.known()) == (1, [made.uuid])
    bench.turn()
    bench.make(start=3, is_own=False)
    bench.turn()
    assert bench.scanner.scans == 2


def test_a_gpu_that_cannot_be_read_after_an_own_change_is_discovered(bench, monkeypatch):
    bench.make()

    def lost(*_):
        raise HardwareError("gpu-lost", "it is lost")

    monkeypatch.setattr(bench.hardware, "mig_mode", lost)
    bench.turn()
    assert bench.scanner.scans == 2


def test_a_gpu_with_a_problem_is_discovered_because_the_problem_may_have_ended(bench):
    bench.scanner._facts = replace(
        bench.scanner._facts, problems=(Problem("hardware.partition-unreadable", bench.gpu().pci_address, "x"),)
    )
    bench.make()
    bench.turn()
    assert bench.scanner.scans == 2


def test_each_own_change_is_reported_because_device_nodes_may_have_changed(bench):
    before = len(bench.reported)
    made = bench.make()
    bench.turn()
    bench.destroy(made)
    bench.turn()
    assert len(bench.reported) == before + 2
