"""Declared geometry: applied where no claim is, repeated without effect, and reported."""

from types import SimpleNamespace

import pytest

from dra_driver.base.errors import HardwareError, NodeError
from dra_driver.node.devices.geometry import read_rules, wanted_of
from dra_driver.node.neighbours.pod_resources import NodePods
from dra_driver.node.prepare.steps.declared_mig import LABEL, MANAGER_LABEL, DeclaredMig, GeometrySource
from tests.support.plugin.mig_parts import MigRig, small


class Labels:
    def __init__(self) -> None:
        self.labels, self.running, self.is_answering = {}, [], True

    def get_node(self, name):
        return {"metadata": {"labels": self.labels}}

    def pods(self):
        if not self.is_answering:
            raise NodeError("pod-resources", "no answer")
        return NodePods(frozenset(self.running), {})


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    rig.labels, rig.allocated, rig.events = Labels(), frozenset(), []
    yield rig
    rig.close()


def declared_mig(rig, declared, config=None) -> DeclaredMig:
    return DeclaredMig(
        GeometrySource(
            read_rules(declared, has_file=config is not None), "n1", api=rig.labels, kubelet=rig.labels, file=config
        ),
        hardware=rig.hardware,
        ledger=rig.ledger,
        locks=rig.locks,
        offered=SimpleNamespace(used=lambda: rig.allocated),
        events=SimpleNamespace(send=lambda reason, message: rig.events.append((reason, message))),
    )


def test_a_geometry_is_applied_once(rig):
    mig = declared_mig(rig, "all-1g.10gb")
    assert mig.apply() == 2
    assert rig.partitions_made() == [(i, "1g.10gb", start) for i in (0, 1) for start in range(7)]
    assert (mig.apply(), mig.problems) == (0, ())


def test_the_balanced_geometry_is_the_mig_managers(rig):
    declared_mig(rig, "all-balanced").apply()
    assert sorted(profile for i, profile, _ in rig.partitions_made() if i == 0) == [
        "1g.10gb",
        "1g.10gb",
        "2g.20gb",
        "3g.40gb",
    ]


def test_another_geometry_replaces_the_first_and_all_disabled_ends_mig_mode(rig):
    declared_mig(rig, "all-balanced").apply()
    declared_mig(rig, "3g.40gb=2").apply()
    assert rig.partitions_made() == [(i, "3g.40gb", start) for i in (0, 1) for start in (0, 4)]
    declared_mig(rig, "all-disabled").apply()
    assert (rig.partitions_made(), rig.modes()) == ([], [False, False])


@pytest.mark.parametrize("prepared", [True, False])
def test_a_gpu_that_a_claim_uses_is_partitioned_after_the_claim_has_ended(rig, prepared):
    if prepared:
        rig.now_prepare("u1", small(3))
    else:
        rig.allocated = frozenset([small(3)])
    mig = declared_mig(rig, "all-3g.40gb")
    assert mig.apply() == 1
    assert [c for c in rig.partitions_made() if c[0] == 1] == [(1, "3g.40gb", 0), (1, "3g.40gb", 4)]
    (problem,) = mig.problems
    assert (problem.code, problem.subject) == ("inventory.geometry", "0000:01:00.0")
    if prepared:
        rig.unprepare("u1")
    rig.allocated = frozenset()
    assert (mig.apply(), mig.problems) == (1, ())


def test_an_unfinished_partition_is_destroyed_unless_the_geometry_has_one_in_its_place(rig, monkeypatch):
    destroyed = []
    monkeypatch.setattr(rig.hardware, "unusable_now", lambda gpu: ((9, 4), (15, 0)))
    monkeypatch.setattr(
        rig.hardware, "destroy_partition", lambda gpu, uuid, _, placement=None: destroyed.append((uuid, placement))
    )
    declared_mig(rig, "3g.40gb=2").apply()
    assert destroyed == [("", (15, 0))] * 2
    assert rig.partitions_made() == [(i, "3g.40gb", start) for i in (0, 1) for start in (0, 4)]


def test_a_geometry_that_does_not_fit_is_reported_and_changes_nothing(rig):
    mig = declared_mig(rig, "3g.40gb=3")
    assert mig.apply() == 0
    assert rig.partitions_made() == []
    assert "does not fit" in mig.problems[0].message


def test_the_label_counts_unless_a_mig_manager_runs_on_the_node(rig):
    mig = declared_mig(rig, "label")
    assert mig.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb", MANAGER_LABEL: "true"}
    rig.labels.running = [("gpu-operator", "nvidia-mig-manager-x7k2p")]
    assert mig.apply() == 0
    rig.labels.running = [("gpu-operator", "nvidia-dcgm-x7k2p")]
    assert mig.apply() == 2


def test_if_the_kubelet_does_not_list_its_pods_the_label_that_deploys_the_manager_counts(rig):
    mig = declared_mig(rig, "label")
    rig.labels.is_answering = False
    rig.labels.labels = {LABEL: "all-1g.10gb", MANAGER_LABEL: "true"}
    assert mig.apply() == 0
    rig.labels.labels = {LABEL: "all-1g.10gb"}
    assert mig.apply() == 2


def test_rules_choose_by_node_and_by_label(rig):
    mig = declared_mig(rig, "gpu-*:all-1g.10gb; pool=big:all-3g.40gb; n?:all-2g.20gb")
    rig.labels.labels = {"pool": "big"}
    mig.apply()
    assert {profile for _, profile, _ in rig.partitions_made()} == {"3g.40gb"}
    rig.labels.labels = {}
    mig.apply()
    assert {profile for _, profile, _ in rig.partitions_made()} == {"2g.20gb"}


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
    mig = declared_mig(rig, "label", config)
    rig.labels.labels = {LABEL: "two-kinds"}
    assert mig.apply() == 1
    small, large = [(1, "1g.10gb", start) for start in range(4)], [(1, "3g.40gb", 4)]
    assert (rig.partitions_made(), rig.modes()) == ([*small, *large], [False, True])
    assert mig.apply() == 0
    assert rig.events == [("MigGeometryApplied", "geometry two-kinds applied to 1 GPU")]
    rig.labels.labels = {LABEL: "other-cards"}
    assert (mig.apply(), mig.problems) == (0, ())
    assert declared_mig(rig, "all-enabled", config).apply() == 2
    assert (rig.partitions_made(), rig.modes()) == ([], [True, True])


def test_a_configuration_that_cannot_be_applied_is_a_problem_of_each_gpu_and_one_event(rig, config):
    mig = declared_mig(rig, "label", config)
    for name, why in (("split", "never created"), ("no-such", "neither built in nor in the file")):
        rig.labels.labels = {LABEL: name}
        assert mig.apply() == mig.apply() == 0
        assert [p.subject for p in mig.problems] == ["0000:01:00.0", "0000:02:00.0"]
        assert all(why in p.message and name in p.message for p in mig.problems)
    assert [reason for reason, _ in rig.events] == ["MigGeometryNotApplied"] * 2


def test_a_malformed_file_is_reported_and_its_last_valid_content_stays_in_force(rig, config):
    mig = declared_mig(rig, "two-kinds", config)
    assert mig.apply() == 1
    good = rig.partitions_made()
    config.write_text("version: v2\nmig-config: {}\n")
    assert mig.apply() == 0
    (problem,) = mig.problems
    assert all(word in problem.message for word in ("version", "v2", "mig-config: unknown field", "mig-configs"))
    assert rig.partitions_made() == good
    config.write_text(CONFIG.replace('"3g.40gb": 1', '"1g.10gb+me": 1'))
    assert mig.apply() == 1
    assert mig.problems == ()
    config.unlink()
    assert (mig.apply(), len(mig.problems)) == (0, 1)


def test_a_gpu_that_fails_does_not_keep_the_other_from_being_partitioned(rig, monkeypatch):
    create = rig.hardware.create_partition

    def refuse(gpu, *more):
        if gpu.pci_address == "0000:01:00.0":
            raise HardwareError("not-answering", "hangs")
        return create(gpu, *more)

    monkeypatch.setattr(rig.hardware, "create_partition", refuse)
    mig = declared_mig(rig, "all-3g.40gb")
    assert mig.apply() == 1
    assert "hangs" in mig.problems[0].message


def test_a_profile_with_media_extensions_can_be_written_in_two_ways(rig):
    for name in ("all-1g.10gb.me", "all-1g.10gb+me"):
        wanted = wanted_of(rig.gpu(), 0, name, {})
        assert [c.profile.name for c in wanted.placements] == ["1g.10gb+me"]
