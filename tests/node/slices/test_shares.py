"""Devices that may be allocated many times, against API servers that keep the fields for that, drop them, or differ."""

import pytest

from dra_driver.base.wire import ShareMode
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.rules import Portion, SharingRule, SharingRules
from dra_driver.node.slices.compare import PoolContent, find_faults
from dra_driver.simulator.registry import Registry
from tests.node.slices.support.cluster import Cluster, refuse_dry_runs
from tests.support.facts import facts
from tests.support.partitionable import partitionable
from tests.support.waiting import until

GATE = "DRAConsumableCapacity"
NAMES = ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
REPLICAS = sorted(f"{name}-share-{index}" for name in NAMES for index in range(3))


def inventory(rule: SharingRule):
    return build_inventory(facts(partitionable(1), partitionable(2)), sharing=SharingRules((rule,), "node"))


BY_REPLICAS = inventory(SharingRule("three", mode=ShareMode.REPLICAS, replicas=3))
BY_MEMORY = inventory(SharingRule("memory", mode=ShareMode.MEMORY, portion=Portion(1 << 30, 1 << 30, 1 << 30)))


def publish(cluster: Cluster, offered=BY_REPLICAS):
    publisher = cluster.publisher()
    publisher.offers.offering = offered.offering
    publisher.publish_changes()
    assert publisher.wait_published(60), publisher.status()
    return publisher


def stored(cluster: Cluster) -> list[dict]:
    return [device for spec in cluster.specs() for device in spec.get("devices", ())]


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_a_server_that_keeps_shares_gets_one_device_for_all(make_cluster, version):
    cluster = make_cluster(version=version, gates={GATE: True})
    status = publish(cluster).status()
    assert (status.devices, status.keeps.shares, status.dropped) == (2, True, ())
    assert cluster.device_names() == NAMES
    for device in stored(cluster):
        assert device["allowMultipleAllocations"] is True
        assert all("default" in capacity["requestPolicy"] for capacity in device["capacity"].values())


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_a_server_with_the_gate_off_gets_plain_replicas_and_nothing_else_is_ever_written(make_cluster, version):
    cluster = make_cluster(version=version, gates={GATE: False})
    status = publish(cluster).status()
    assert cluster.device_names() == REPLICAS
    assert not status.keeps.shares
    (problem,) = status.problems
    assert problem.code == "controller.fields-dropped"
    assert "replicas" in problem.message
    assert GATE in problem.message
    assert cluster.writes() == ["POST", "POST"], "probed, and written once"
    assert not any("requestPolicy" in c for d in stored(cluster) for c in d["capacity"].values())


def test_without_replicas_the_device_is_offered_as_a_whole_gpu(make_cluster):
    cluster = make_cluster(version="1.35", gates={GATE: False})
    publish(cluster, BY_MEMORY)
    assert cluster.device_names() == NAMES
    assert [device["attributes"]["type"] for device in stored(cluster)] == [{"string": "gpu"}] * 2


def test_of_two_servers_that_differ_the_one_that_drops_fields_decides(make_cluster, monkeypatch):
    cluster = make_cluster(version="1.35", gates={GATE: True})
    create, on = Registry.create, cluster.server._registry._gates

    def other_server(self, kind, namespace, wire, *, is_dry=False):
        self._gates = on if is_dry else on - {GATE}
        return create(self, kind, namespace, wire, is_dry=is_dry)

    monkeypatch.setattr(Registry, "create", other_server)
    publish(cluster)
    assert cluster.device_names() == REPLICAS


def test_a_server_that_refuses_dry_runs_gets_replicas(make_cluster, monkeypatch):
    cluster = make_cluster(version="1.36")
    refuse_dry_runs(monkeypatch)
    assert not publish(cluster).status().keeps.shares
    assert cluster.device_names() == REPLICAS


def test_a_newer_server_version_is_probed_again(make_cluster):
    cluster = make_cluster(version="1.35", gates={GATE: False})
    publisher = publish(cluster)
    cluster.server._registry._gates |= {GATE}
    cluster.server._dispatch._minor = cluster.server._registry._minor = 36
    until(lambda: cluster.server.open_watches, what="a watch to drop")
    cluster.server.drop_watches()
    until(lambda: cluster.device_names() == NAMES, what="shared devices")
    assert publisher.status().keeps.shares


def test_the_server_is_probed_for_rules_that_come_later_too(make_cluster):
    cluster = make_cluster(version="1.35", gates={GATE: False})
    publisher = cluster.publisher()
    publisher.offer(BY_MEMORY.offering.instead[NAMES[0]])
    assert publisher.wait_published(60)
    publisher.offers.offering = BY_REPLICAS.offering
    publisher.publish_changes()
    until(lambda: cluster.device_names() == REPLICAS, what="replicas")


def test_a_device_whose_first_share_would_take_all_of_a_capacity_is_never_published():
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "1Gi"}}}
    assert "the first claim would take all its memory" in find_faults(PoolContent((device,)), server_minor=36)[0]
