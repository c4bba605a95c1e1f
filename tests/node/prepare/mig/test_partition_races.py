"""A claim of a standing partition races with what destroys partitions: one happens, and the other is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_driver.base.errors import DriverError
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.geometry import read_rules
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.ledger.locks import device_lock
from dra_driver.node.prepare.preparer import Preparer
from dra_driver.node.prepare.steps import declared_mig
from dra_driver.node.prepare.steps.declared_mig import DeclaredMig, GeometrySource
from dra_driver.node.prepare.steps.standing_partitions import AbandonedPartitions
from tests.support.plugin.lock_order import LockOrder
from tests.support.plugin.mig_parts import MigRig, small
from tests.support.plugin.nvidia_checkpoint import write_checkpoint
from tests.support.plugin.parts import in_thread
from tests.support.waiting import until

DRIVER = "gpu.nvidia.com"


class Node:
    """A node with one standing partition, what destroys it there, and a second agent that prepares a claim for it."""

    def __init__(self, root: Path, kind: str) -> None:
        self.rig = MigRig(root)
        self.partition = self.rig.by_hand("1g.10gb", 3)
        uuid = self.rig.gpu().uuid
        write_checkpoint(
            self.rig.data / "checkpoint.json",
            {"c3": [("gpu-0-mig-1g10gb-19-3", self.partition.uuid, uuid)]},
            boot_id="boot-1",
        )
        self.destroy: Callable[[], int] = {"declared": self._declared, "abandoned": self._abandoned}[kind]().run
        self.other: Preparer = self.rig.preparer
        self.hardware = self.rig.hardware
        self.scan()
        self.rig.allocate("u1", small(3))

    def scan(self) -> None:
        rig = self.rig
        facts, ownership = rig.owners.determine(rig.hardware.discover())
        rig.inventory = build_inventory(facts, MigPolicy(is_dynamic=False, ownership=ownership))

    def upgrade(self) -> None:
        """Start a second agent, which prepares the claim; what destroys partitions stays in the first one."""
        self.other = self.rig.restart()
        self.scan()

    def prepare(self, seconds: float | None = None) -> Any:
        return self.rig.prepare("u1", seconds, self.other)

    def _declared(self) -> SimpleNamespace:
        rig, api = self.rig, SimpleNamespace(get_node=lambda _: {}, pods=None)
        mig = DeclaredMig(
            GeometrySource(read_rules("all-3g.40gb", has_file=False), "n1", api=api, kubelet=api),
            hardware=rig.hardware,
            ledger=rig.ledger,
            locks=rig.locks,
            offered=SimpleNamespace(used=frozenset),
            events=SimpleNamespace(send=lambda *_: None),
        )
        self.problems = lambda: [problem.message for problem in mig.problems]
        return SimpleNamespace(run=mig.apply)

    def _abandoned(self) -> SimpleNamespace:
        rig = self.rig
        partitions = AbandonedPartitions(
            rig.data,
            driver=DRIVER,
            hardware=rig.hardware,
            ledger=rig.ledger,
            locks=rig.locks,
            boot_id=rig.boot_id,
            claims=SimpleNamespace(may_hold=lambda _: False),
            events=SimpleNamespace(send=lambda *_: None),
        )
        return SimpleNamespace(run=partitions.destroy)

    def has_partition(self) -> bool:
        return (0, "1g.10gb", 3) in self.rig.partitions_made()

    def assert_whole(self) -> None:
        """Check that a prepared claim has its partition, and that without a claim nothing of it is left."""
        if "u1" in self.rig.states():
            assert self.has_partition()
        else:
            self.rig.assert_empty()


@pytest.fixture(params=["declared", "abandoned"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, request.param)
    yield node
    node.rig.close()


@pytest.fixture(params=[False, True], ids=["one agent", "two agents"])
def agents(request: pytest.FixtureRequest, node: Node) -> None:
    if request.param:
        node.upgrade()


def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Run `act` when a method is called for the first time, before it does anything."""
    call, acts = getattr(owner, name), [act]

    def acting(*values: Any, **more: Any) -> Any:
        if acts:
            acts.pop()()
        return call(*values, **more)

    monkeypatch.setattr(owner, name, acting)


@pytest.mark.usefixtures("agents")
def test_a_claim_that_comes_while_its_partition_is_destroyed_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Any] = []

    def prepare() -> None:
        thread, outcome = in_thread(node.prepare, 0.2)
        thread.join(60)
        outcomes.extend(outcome)

    once_before(monkeypatch, node.hardware, "destroy_partition", prepare)
    node.destroy()
    (outcome,) = outcomes
    assert isinstance(outcome, DriverError)
    assert (outcome.code, small(3) in outcome.message) == ("prepare.locked", True)
    assert not node.has_partition()
    node.assert_whole()


@pytest.mark.usefixtures("agents")
def test_a_partition_stays_whose_claim_is_about_to_be_recorded(
    node: Node, monkeypatch: pytest.MonkeyPatch, lock_order: LockOrder
) -> None:
    threads: list[threading.Thread] = []

    def destroy() -> None:
        lock_order.wanted.clear()
        thread, _ = in_thread(node.destroy)
        threads.append(thread)
        until(lambda: not thread.is_alive() or device_lock(small(3)) in lock_order.wanted)

    once_before(monkeypatch, node.rig.ledger, "intend", destroy)
    node.prepare()
    threads[0].join(60)
    assert node.has_partition()
    assert node.rig.states() == {"u1": "prepared"}


@pytest.mark.usefixtures("agents")
def test_a_claim_that_was_planned_before_its_partition_was_destroyed_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_before(monkeypatch, node.rig.ledger, "get_with_holds", node.destroy)
    with pytest.raises(DriverError) as caught:
        node.prepare()
    assert caught.value.code == "hardware.partition-missing"
    assert not node.has_partition()
    node.assert_whole()


def test_who_does_not_get_the_locks_changes_nothing_and_names_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared_mig, "LOCK_SECONDS", 0.0)
    node = Node(tmp_path, "declared")
    once_before(monkeypatch, node.rig.ledger, "intend", lambda: in_thread(node.destroy)[0].join(60))
    node.prepare()
    assert node.has_partition()
    assert node.problems() == [f"geometry all-3g.40gb not applied: another call is still working on device/{small(3)}"]
    node.rig.close()
