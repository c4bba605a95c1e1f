"""Declared geometry: applied where no claim is, repeated without effect, and reported."""

from types import SimpleNamespace

import pytest

from dra_driver.inventory.mig.geometry import wanted_of
from dra_driver.inventory.mig.geometry_rules import read_rules
from dra_driver.model.errors import HardwareError, NodeError
from dra_driver.plugin.mig.declared_mig import DeclaredMig
from dra_driver.plugin.mig.geometry_source import LABEL, MANAGER_LABEL, GeometrySource
from dra_driver.plugin.node_claims.pod_resources import NodePods
from tests.support.plugin.mig_parts import MigRig, small


class Labels:
    def __init__(self) -> None:
        self.labels, self.running, self.is_telling = {}, [], True

    def get_node(self, name):
        return {"metadata": {"labels": self.labels}}

    def pods(self):
        if not self.is_telling:
            raise NodeError("pod-resources", "no answer")
        return NodePods(frozenset(self.running), {})


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    rig.labels, rig.allocated, rig.told = Labels(), frozenset(), []
    yield rig
    rig.close()


def geometer(rig, declared, config=None) -> DeclaredMig:
    return DeclaredMig(
        GeometrySource(
            read_rules(declared, has_file=config is not None), "n1", api=rig.labels, kubelet=rig.labels, file=config
        ),
        hardware=rig.hardware,
        ledger=rig.ledger,
        locks=rig.locks,
        offered=SimpleNamespace(used=lambda: rig.allocated),
        events=SimpleNamespace(send=lambda reason, message: rig.told.append((reason, message))),
    )


def test_a_geometry_is_applied_once_and_told(rig):
    it = geometer(rig, "all-1g.10gb")
    assert it.apply() == 2
    assert rig.cuts() == [(i, "1g.10gb", start) for i in (0, 1) for start in range(7)]
    assert (it.apply(), it.problems) == (0, ())


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


def test_what_somebody_has_only_begun_gives_way_unless_it_is_wanted_there(rig, monkeypatch):
    destroyed = []
    monkeypatch.setattr(rig.hardware, "unusable_now", lambda gpu: ((9, 4), (15, 0)))
    monkeypatch.setattr(
        rig.hardware, "destroy_partition", lambda gpu, uuid, _, placement=None: destroyed.append((uuid, placement))
    )
    geometer(rig, "3g.40gb=2").apply()
    assert destroyed == [("", (15, 0))] * 2
    assert rig.cuts() == [(i, "3g.40gb", start) for i in (0, 1) for start in (0, 4)]


def test_what_does_not_fit_is_reported_and_changes_nothing(rig):
    it = geometer(rig, "3g.40gb=3")
    assert it.apply() == 0
    assert rig.cuts() == []
    assert "does not fit" in it.problems[0].message


def test_the_label_counts_unless_a_mig_manager_runs_on_the_node(rig):
    it = geometer(rig, "label")
    assert it.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb", MANAGER_LABEL: "true"}
    rig.labels.running = [("gpu-operator", "nvidia-mig-manager-x7k2p")]
    assert it.apply() == 0
    rig.labels.running = [("gpu-operator", "nvidia-dcgm-x7k2p")]
    assert it.apply() == 2


def test_where_the_kubelet_does_not_tell_of_its_pods_the_label_that_deploys_the_manager_counts(rig):
    it = geometer(rig, "label")
    rig.labels.is_telling = False
    rig.labels.labels = {LABEL: "all-1g.10gb", MANAGER_LABEL: "true"}
    assert it.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb"}
    assert it.apply() == 2


def test_rules_choose_by_node_and_by_label(rig):
    it = geometer(rig, "gpu-*:all-1g.10gb; pool=big:all-3g.40gb; n?:all-2g.20gb")
    rig.labels.labels = {"pool": "big"}
    it.apply()
    assert {profile for _, profile, _ in rig.cuts()} == {"3g.40gb"}
    rig.labels.labels = {}
    it.apply()
    assert {profile for _, profile, _ in rig.cuts()} == {"2g.20gb"}


CONFIG = """
version: v1
mig-configs:
  two-kinds:
    - devices: all
      mig-enabled: false
    - device-filter: ["0x233010DE"]
      devices: [1]
      mig-enabled: true
      mig-devices: {"1g.10gb": 4, "3g.40gb": 1}
  other-cards:
    - device-filter: "0x20B010DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 7}
  all-enabled:
    - {devices: all, mig-enabled: true, mig-devices: {}}
  split:
    - {devices: all, mig-enabled: true, mig-devices: {"1c.3g.40gb": 3}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def test_a_configuration_of_the_mig_managers_file_is_applied_by_name_and_by_label(rig, config):
    it = geometer(rig, "label", config)
    rig.labels.labels = {LABEL: "two-kinds"}
    assert it.apply() == 1
    small, large = [(1, "1g.10gb", start) for start in range(4)], [(1, "3g.40gb", 4)]
    assert (rig.cuts(), rig.modes()) == ([*small, *large], [False, True])
    assert it.apply() == 0
    assert rig.told == [("MigGeometryApplied", "geometry two-kinds applied to 1 GPU")]
    rig.labels.labels = {LABEL: "other-cards"}
    assert (it.apply(), it.problems) == (0, ())
    assert geometer(rig, "all-enabled", config).apply() == 2
    assert (rig.cuts(), rig.modes()) == ([], [True, True])


def test_a_configuration_that_can_not_be_made_is_told_by_gpu_and_once(rig, config):
    it = geometer(rig, "label", config)
    for name, why in (("split", "never created"), ("no-such", "neither built in nor in the file")):
        rig.labels.labels = {LABEL: name}
        assert it.apply() == it.apply() == 0
        assert [p.subject for p in it.problems] == ["0000:01:00.0", "0000:02:00.0"]
        assert all(why in p.message and name in p.message for p in it.problems)
    assert [reason for reason, _ in rig.told] == ["MigGeometryNotApplied"] * 2


def test_a_file_that_is_wrong_is_told_and_what_it_said_last_holds(rig, config):
    it = geometer(rig, "two-kinds", config)
    assert it.apply() == 1
    good = rig.cuts()
    config.write_text("version: v2\nmig-config: {}\n")
    assert it.apply() == 0
    (problem,) = it.problems
    assert all(word in problem.message for word in ("version", "v2", "mig-config: unknown field", "mig-configs"))
    assert rig.cuts() == good
    config.write_text(CONFIG.replace('"3g.40gb": 1', '"1g.10gb+me": 1'))
    assert it.apply() == 1
    assert it.problems == ()
    config.unlink()
    assert (it.apply(), len(it.problems)) == (0, 1)


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
        wanted = wanted_of(rig.gpu(), 0, name, {})
        assert [c.profile.name for c in wanted.placements] == ["1g.10gb+me"]
