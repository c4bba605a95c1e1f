"""Tainted devices: one write, times that stay, and servers that drop taints."""

from datetime import UTC, datetime

import pytest

from dra_driver.base.wire import DeviceTaint, TaintEffect
from dra_driver.node.slices import compare
from dra_driver.node.slices.compare import accepted_taints
from tests.node.slices.support.cluster import settled
from tests.node.slices.support.slices import device, gpu, part
from tests.support.waiting import until

GATE = "DRADeviceTaints"
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
FAULTY = (DeviceTaint("gpu.nvidia.com/xid", "79", TaintEffect.NO_SCHEDULE, SINCE),)


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize("count", [8, 64, 200])
def test_the_first_taint_is_one_put_and_no_new_generation(make_cluster, version, count):
    cluster = make_cluster(version=version, gates={GATE: True})
    publisher = cluster.published([gpu(i) for i in range(count)])
    before = {s["metadata"]["name"] for s in cluster.slices()}
    cluster.server.log.clear()
    publisher.taint(**{gpu(3).name: FAULTY})
    assert publisher.wait_published(60)
    assert cluster.writes() == ["POST", "PUT"], "probed without storing anything, and written once"
    assert {s["metadata"]["name"] for s in cluster.slices()} == before
    assert {s["pool"]["generation"] for s in cluster.specs()} == {1}
    (taint,) = cluster.devices()[gpu(3).name]["taints"]
    assert taint == FAULTY[0].wire()
    publisher.taint()
    assert publisher.wait_published(60)
    assert cluster.writes() == ["POST", "PUT", "PUT"]
    assert "taints" not in cluster.devices()[gpu(3).name]


def test_a_taint_keeps_its_time_when_other_things_change_and_costs_no_further_write(make_cluster):
    cluster = make_cluster(version="1.36")
    taints = {gpu(0).name: (DeviceTaint("k", "", TaintEffect.NO_EXECUTE),)}
    publisher = cluster.published([gpu(0), gpu(1)], taints=taints)
    since = cluster.devices()[gpu(0).name]["taints"][0]["timeAdded"]
    settled()
    assert cluster.writes() == ["POST", "POST"]
    settled(1.1)  # the server's clock has whole seconds
    publisher.offer([gpu(0), gpu(1, numaNode=1)], taints=taints)
    assert publisher.wait_published(60)
    assert cluster.devices()[gpu(0).name]["taints"][0]["timeAdded"] == since


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_where_taints_are_dropped_free_faulty_devices_are_withheld_and_those_in_use_stay(make_cluster, version):
    cluster = make_cluster(version=version)
    publisher = cluster.publisher()
    publisher.offers.in_use = frozenset([gpu(1).name])
    publisher.offer([gpu(i) for i in range(3)], taints={gpu(0).name: FAULTY, gpu(1).name: FAULTY})
    assert publisher.wait_published(60)
    assert sorted(cluster.devices()) == [gpu(1).name, gpu(2).name]
    assert "taints" not in cluster.devices()[gpu(1).name]
    assert publisher.status().dropped == ("devices.taints",)
    assert not publisher.status().keeps.taints
    settled()
    assert cluster.writes() == ["POST", "POST"], "probed, and written once: never published as healthy"


def test_the_counters_of_a_faulty_partition_in_use_are_not_given_out_again(make_cluster):
    cluster = make_cluster(version="1.36", gates={GATE: False})
    publisher = cluster.publisher()
    publisher.offers.in_use = frozenset(["a"])
    publisher.offer([part("a"), part("b")], counter_sets={"gpu-0": {"memory": 1}}, taints={"a": FAULTY, "b": FAULTY})
    assert publisher.wait_published(60)
    (name,) = cluster.devices()
    assert name == "a"
    assert cluster.devices()["a"]["consumesCounters"]


def test_a_faulty_device_is_offered_with_its_taint_soon_after_the_gate_is_switched_on(make_cluster, monkeypatch):
    monkeypatch.setattr(compare, "TAINTS_AGAIN_SECONDS", 0.2)
    cluster = make_cluster(version="1.35")
    publisher = cluster.published([gpu(0), gpu(1)], taints={gpu(0).name: FAULTY})
    assert sorted(cluster.devices()) == [gpu(1).name]
    cluster.server._registry._gates |= {GATE}
    until(lambda: gpu(0).name in cluster.devices(), what="the faulty device with its taint")
    assert cluster.devices()[gpu(0).name]["taints"] == [FAULTY[0].wire()]
    until(lambda: publisher.status().keeps.taints and not publisher.status().problems)


def test_probing_again_in_vain_writes_and_reports_nothing(make_cluster, monkeypatch, caplog):
    monkeypatch.setattr(compare, "TAINTS_AGAIN_SECONDS", 0.1)
    cluster = make_cluster(version="1.35")
    publisher = cluster.published([gpu(0), gpu(1)], taints={gpu(0).name: FAULTY})
    before = [s["metadata"]["resourceVersion"] for s in cluster.slices()]
    cluster.server.log.clear()
    until(lambda: len(cluster.writes()) >= 3, what="three probes")
    assert [s["metadata"]["resourceVersion"] for s in cluster.slices()] == before
    assert {e.query.get("dryRun") for e in cluster.server.log.writes("resourceslices")} == {"All"}
    assert publisher.status().is_published
    assert [r.getMessage() for r in caplog.records].count("the API server dropped fields of our slices") == 1


def test_a_taint_without_effect_is_harmless_where_it_is_dropped(make_cluster):
    cluster = make_cluster(version="1.35")
    cluster.published([gpu(0)], taints={gpu(0).name: (DeviceTaint("k", "", TaintEffect.NONE),)})
    assert sorted(cluster.devices()) == [gpu(0).name]


def test_a_server_of_1_34_gets_the_four_most_severe_taints_of_effects_that_it_knows():
    effects = [TaintEffect.NONE, *[TaintEffect.NO_SCHEDULE] * 4, TaintEffect.NO_EXECUTE]
    taints = [DeviceTaint(f"k{i}", "", effect) for i, effect in enumerate(effects)]
    assert [t.key for t in accepted_taints(taints, server_minor=34)] == ["k5", "k1", "k2", "k3"]
    assert len(accepted_taints(taints, server_minor=35)) == 6
    assert len(accepted_taints(taints * 3, server_minor=0)) == 16


def test_where_few_taints_are_accepted_the_first_and_most_important_ones_stay():
    taints = [
        DeviceTaint(f"k/{key}", "", TaintEffect.NO_SCHEDULE) for key in ("reset", "xid", "ecc", "threshold", "rows")
    ]
    kept = [one.key for one in accepted_taints(taints, server_minor=34)]
    assert kept == ["k/ecc", "k/reset", "k/threshold", "k/xid"]
    assert kept == [one.key for one in accepted_taints(taints[:4], server_minor=34)]


def test_a_taint_of_a_device_that_is_not_offered_is_left_out(make_cluster):
    cluster = make_cluster(version="1.36")
    cluster.published([device("a")], taints={"gone": FAULTY})
    assert "taints" not in cluster.devices()["a"]
