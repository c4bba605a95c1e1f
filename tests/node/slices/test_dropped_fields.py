"""Servers that drop fields because their gates are off: what is offered to them, and what is written."""

import logging

import pytest

from dra_driver.base.wire import DeviceTaint, TaintEffect
from tests.node.slices.support.cluster import settled
from tests.node.slices.support.slices import device, gpu, part
from tests.support.waiting import until

COUNTERS = {"gpu-0": {"memory": 8}}
NOTE = DeviceTaint("k", "", TaintEffect.NONE)


def test_counters_are_laid_out_as_the_servers_version_requires(make_cluster):
    for version, shapes in {
        "1.34": [["devices", "sharedCounters"]],
        "1.35": [["devices"], ["sharedCounters"]],
        "1.36": [["devices"], ["sharedCounters"]],
    }.items():
        cluster = make_cluster(version=version, gates={"DRAPartitionableDevices": True})
        publisher = cluster.published([part("a"), part("b")], counter_sets=COUNTERS)
        assert sorted(sorted(s.keys() & {"devices", "sharedCounters"}) for s in cluster.specs()) == shapes
        assert publisher.status().dropped == ()


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_a_server_that_drops_counters_never_keeps_overlapping_devices(make_cluster, caplog, version):
    cluster = make_cluster(version=version)
    with caplog.at_level(logging.WARNING):
        publisher = cluster.published(
            [part("a"), part("b"), device("whole")], counter_sets=COUNTERS, plain=(device("whole"),)
        )
    assert cluster.device_names() == ["whole"]
    settled()
    status = publisher.status()
    assert "sharedCounters" in status.dropped
    (problem,) = status.problems
    assert problem.code == "controller.fields-dropped"
    assert "DRAPartitionableDevices" in problem.message
    dropped = [r for r in caplog.records if r.getMessage() == "the API server dropped fields of our slices"]
    assert 1 <= len(dropped) <= 2
    assert "DRAPartitionableDevices" in dropped[0].dra_fields["hint"]
    assert len(cluster.writes()) <= 4


def test_a_harmless_loss_is_reported_and_costs_no_further_write(make_cluster, monkeypatch):
    from dra_driver.node.slices import server_facts

    monkeypatch.setattr(
        server_facts.Probe, "ask", lambda self, *_, **__: server_facts.DroppedFields("pool")
    )  # only the write shows that the field is dropped
    cluster = make_cluster(version="1.35")
    publisher = cluster.published([gpu(0)], taints={gpu(0).name: (NOTE,)})
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.drop_watches()
    settled(0.6)
    assert cluster.writes() == ["POST"]
    assert "DRADeviceTaints" in publisher.status().problems[0].message
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
    assert publisher.status().problems == ()


def test_a_new_server_version_is_noticed_when_the_watch_connects_again(make_cluster):
    cluster = make_cluster(version="1.34", gates={"DRAPartitionableDevices": True})
    publisher = cluster.published([part("a")], counter_sets=COUNTERS)
    until(lambda: cluster.server.open_watches == 1)
    cluster.server._dispatch._minor = cluster.server._registry._minor = 35  # upgraded under its clients
    cluster.server.drop_watches()
    until(lambda: publisher.status().server == "v1.35.0")
    until(lambda: len(cluster.specs()) == 2)
    assert sorted(sorted(s.keys() & {"devices", "sharedCounters"}) for s in cluster.specs()) == [
        ["devices"],
        ["sharedCounters"],
    ]
