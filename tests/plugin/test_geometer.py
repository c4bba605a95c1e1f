"""Declared geometry: applied where nobody is, again and again without effect, and reported."""

import pytest

from dra_driver.inventory.geometry import cuts_for
from dra_driver.model.errors import HardwareError
from dra_driver.plugin.geometer import LABEL, MANAGER_LABEL, Geometer
from tests.plugin.mig_parts import MigRig, small


class Labels:
    def __init__(self) -> None:
        self.labels = {}

    def get_node(self, name):
        return {"metadata": {"labels": self.labels}}


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    rig.labels, rig.allocated, rig.changes = Labels(), frozenset(), 0
    yield rig
    rig.close()


def geometer(rig, declared) -> Geometer:
    def changed():
        rig.changes += 1

    return Geometer(
        declared,
        "n1",
        api=rig.labels,
        hardware=rig.hardware,
        ledger=rig.ledger,
        locks=rig.locks,
        allocated=lambda: rig.allocated,
        changed=changed,
    )


def test_a_geometry_is_applied_once_and_told(rig):
    it = geometer(rig, "all-1g.10gb")
    assert it.apply() == 2
    assert rig.cuts() == [(i, "1g.10gb", start) for i in (0, 1) for start in range(7)]
    assert (it.apply(), rig.changes, it.problems) == (0, 1, ())


def test_the_balanced_geometry_is_the_mig_managers(rig):
    geometer(rig, "all-balanced").apply()
    assert sorted(profile for i, profile, _ in rig.cuts() if i == 0) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]


def test_another_geometry_takes_the_place_of_the_first_and_none_gives_the_gpus_back(rig):
    geometer(rig, "all-balanced").apply()
    geometer(rig, "3g.40gb=2").apply()
    assert rig.cuts() == [(i, "3g.40gb", start) for i in (0, 1) for start in (0, 4)]
    geometer(rig, "all-disabled").apply()
    assert (rig.cuts(), rig.modes()) == ([], [False, False])


@pytest.mark.parametrize("prepared", [True, False])
def test_a_gpu_that_a_claim_uses_waits(rig, prepared):
    if prepared:
        rig.now_prepare("u1", small(3))
    else:
        rig.allocated = frozenset([small(3)])
    it = geometer(rig, "all-3g.40gb")
    assert it.apply() == 1
    assert [c for c in rig.cuts() if c[0] == 1] == [(1, "3g.40gb", 0), (1, "3g.40gb", 4)]
    (problem,) = it.problems
    assert (problem.code, problem.subject) == ("inventory.geometry", "0000:01:00.0")
    if prepared:
        rig.unprepare("u1")
    rig.allocated = frozenset()
    assert (it.apply(), it.problems) == (1, ())


def test_what_does_not_fit_is_reported_and_changes_nothing(rig):
    it = geometer(rig, "3g.40gb=3")
    assert it.apply() == 0
    assert rig.cuts() == []
    assert "does not fit" in it.problems[0].message


def test_the_label_counts_unless_a_mig_manager_runs(rig):
    it = geometer(rig, "label")
    assert it.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb", MANAGER_LABEL: "true"}
    assert it.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb"}
    assert it.apply() == 2


def test_a_gpu_that_resists_does_not_keep_the_other_from_being_cut(rig, monkeypatch):
    create = rig.hardware.create_partition

    def refuse(gpu, *more):
        if gpu.pci_address == "0000:01:00.0":
            raise HardwareError("not-answering", "hangs")
        return create(gpu, *more)

    monkeypatch.setattr(rig.hardware, "create_partition", refuse)
    it = geometer(rig, "all-3g.40gb")
    assert it.apply() == 1
    assert "hangs" in it.problems[0].message


def test_media_extensions_are_named_both_ways(rig):
    for name in ("all-1g.10gb.me", "all-1g.10gb+me"):
        assert [c.profile.name for c in cuts_for(rig.gpu(), name)] == ["1g.10gb+me"]
