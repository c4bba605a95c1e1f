"""How often the reaper asks the API server whether claims are gone. Not covered here: what it undoes (test_holders)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.node.neighbours.gone_claims import GONE_SECONDS
from dra_driver.node.prepare.repair import ASKED_AT_ONCE, EXISTS_SECONDS, Reaper
from tests.support.plugin.parts import DRIVER, Rig, inventory

COUNT = 40


class Node:
    """Many prepared claims, some of which the kubelet reports, and a clock."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.here = rig, set[str]()
        rig.inventory = inventory(COUNT)
        for index in range(COUNT):
            rig.allocate(f"u{index}", f"gpu-{index}")
            rig.prepare(f"u{index}")
        self.reaper = Reaper(
            rig.repair,
            rig.store,
            driver=DRIVER,
            claims=self,
            clock=rig.clock,
        )

    def has_pod(self, record) -> bool:
        """Return whether a pod has the claim, as the kubelet reports it: those in `here` have one."""
        return record.uid in self.here

    def asked(self) -> int:
        """Look once; return how many claims the API server was asked about."""
        before = self.rig.api.requests["get"]
        self.reaper.reap()
        return self.rig.api.requests["get"] - before


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    rig = Rig(tmp_path)
    yield Node(rig)
    rig.close()


def test_a_full_node_asks_about_a_few_claims_a_minute_and_about_each_in_its_turn(node: Node) -> None:
    looks = -(-COUNT // ASKED_AT_ONCE)
    counts = [node.asked() for _ in range(looks)]
    assert max(counts) == ASKED_AT_ONCE
    assert sum(counts) == COUNT
    assert node.asked() == 0, "all were there a moment ago"
    node.rig.clock.seconds += EXISTS_SECONDS * 1.25
    assert node.asked() == ASKED_AT_ONCE


def test_claims_that_the_kubelet_reports_are_not_asked_about_and_one_that_it_no_longer_reports_is(
    node: Node,
) -> None:
    node.here = {f"u{index}" for index in range(COUNT)}
    assert [node.asked() for _ in range(3)] == [0, 0, 0]
    node.here.remove("u7")
    node.rig.api.delete("u7")
    assert node.asked() == 1
    assert node.asked() == 1, "gone, and asked about again until it is undone"
    node.rig.clock.seconds += GONE_SECONDS
    assert node.asked() >= 1
    assert node.rig.ledger.get("u7") is None
    assert node.rig.ledger.count() == COUNT - 1
