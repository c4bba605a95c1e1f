"""Overlapping devices against API servers that keep shared counters, drop them, or differ behind one address."""

import json

import pytest

from dra_driver.kube.paths import SLICES
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import Offering
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.simulator.registry import Registry
from tests.node.slices.support.cluster import Cluster, SetOffers, refuse_dry_runs
from tests.support.facts import facts
from tests.support.partitionable import partitionable
from tests.support.waiting import until

GATE = "DRAPartitionableDevices"


INVENTORY = build_inventory(facts(partitionable(1), partitionable(2)), MigPolicy(is_dynamic=True))
NINE_EACH = 2 * 9


def publish(cluster: Cluster, publisher=None):
    publisher = publisher or cluster.publisher()
    publisher.offers.offering = INVENTORY.offering
    publisher.publish_changes()
    assert publisher.wait_published(60), publisher.status()
    return publisher


@pytest.fixture
def watched(monkeypatch):
    """Record every create and update as a pair: whether it is a dry run, and the spec."""
    sent = []
    create, update = Registry.create, Registry.replace

    def recording_create(self, kind, namespace, wire, *, is_dry=False):
        if kind.plural == "resourceslices":
            sent.append((is_dry, json.loads(json.dumps(wire["spec"]))))
        return create(self, kind, namespace, wire, is_dry=is_dry)

    def recording_update(self, target, wire):
        if target.kind.plural == "resourceslices":
            sent.append((False, json.loads(json.dumps(wire["spec"]))))
        return update(self, target, wire)

    monkeypatch.setattr(Registry, "create", recording_create)
    monkeypatch.setattr(Registry, "replace", recording_update)
    return sent


def is_overlapping(spec) -> bool:
    return len(spec.get("devices") or ()) > 1 and any(d.get("consumesCounters") for d in spec["devices"])


@pytest.mark.parametrize(("version", "slices"), [("1.34", 1), ("1.35", 3), ("1.36", 3), ("1.37", 3)])
def test_a_server_that_keeps_counters_gets_every_placement(make_cluster, watched, version, slices):
    cluster = make_cluster(version=version, gates={GATE: True})
    status = publish(cluster).status()
    assert (status.devices, status.slices, status.keeps.counters, status.dropped) == (NINE_EACH, slices, True, ())
    assert watched[0][0], "the first request is the probe, which stores nothing"
    assert not is_overlapping(watched[0][1])
    if version != "1.34":
        assert "devices" not in watched[1][1], "counters are written before devices"


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_a_server_with_the_gate_off_gets_whole_gpus_and_never_a_request_with_overlaps(make_cluster, watched, version):
    cluster = make_cluster(version=version, gates={GATE: False})
    publisher = publish(cluster)
    status = publisher.status()
    assert cluster.device_names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    assert not status.keeps.counters
    (problem,) = status.problems
    assert problem.code == "controller.fields-dropped"
    assert "whole GPUs" in problem.message
    assert GATE in problem.message
    assert not any(is_overlapping(spec) for _, spec in watched)
    assert [e for e in cluster.writes() if e == "DELETE"] == []


def test_each_start_probes_the_server_again(make_cluster, watched):
    cluster = make_cluster(version="1.35", gates={GATE: False})
    first = publish(cluster)
    first.stop()
    cluster.server._registry._gates |= {GATE}
    publish(cluster)
    assert len(cluster.device_names()) == NINE_EACH
    cluster.publishers[-1].stop()
    cluster.server._registry._gates -= {GATE}
    publish(cluster)
    assert cluster.device_names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]


def test_of_two_servers_that_differ_the_one_that_drops_fields_decides(make_cluster, watched, monkeypatch):
    cluster = make_cluster(version="1.35", gates={GATE: True})
    create = Registry.create
    on = cluster.server._registry._gates

    def other_server(self, kind, namespace, wire, *, is_dry=False):
        self._gates = on if is_dry else on - {GATE}
        return create(self, kind, namespace, wire, is_dry=is_dry)

    monkeypatch.setattr(Registry, "create", other_server)
    publish(cluster)
    assert cluster.device_names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    written = [spec for is_dry, spec in watched if not is_dry]
    assert "devices" not in written[0], "writing the counters alone showed that they are dropped"
    assert not any(is_overlapping(spec) for spec in written)


def test_devices_whose_counters_a_server_dropped_are_deleted_at_once(make_cluster, monkeypatch):
    cluster = make_cluster(version="1.35", gates={GATE: True})
    create = Registry.create
    on = cluster.server._registry._gates

    def other_server(self, kind, namespace, wire, *, is_dry=False):
        self._gates = on - {GATE} if wire.get("spec", {}).get("devices") else on
        return create(self, kind, namespace, wire, is_dry=is_dry)

    monkeypatch.setattr(Registry, "create", other_server)
    publish(cluster)
    assert cluster.device_names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    writes = cluster.writes()
    assert writes.index("DELETE") == 3, f"the probe, counters, devices, then the deletion: {writes}"


def test_a_newer_server_version_is_probed_again(make_cluster):
    cluster = make_cluster(version="1.35", gates={GATE: False})
    publisher = publish(cluster)
    cluster.server._registry._gates |= {GATE}
    cluster.server._dispatch._minor = cluster.server._registry._minor = 36
    until(lambda: cluster.server.open_watches, what="the watch")
    cluster.server.drop_watches()
    until(lambda: len(cluster.device_names()) == NINE_EACH, what="all placements")
    assert publisher.status().keeps.counters


def test_a_server_of_1_34_that_refuses_dry_runs_is_taken_not_to_keep_counters(make_cluster, watched, monkeypatch):
    cluster = make_cluster(version="1.34", gates={GATE: True})
    refuse_dry_runs(monkeypatch)
    publish(cluster)
    assert cluster.device_names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"]
    assert cluster.server.request("GET", SLICES)["items"]


def test_slices_stay_until_it_is_known_what_to_offer_without_counters(make_cluster):
    from dra_driver.base.errors import ApiError, Retry

    cluster = make_cluster(version="1.36", gates={GATE: True})
    asked = []

    class Unsure(SetOffers):
        def current(self, keeps):
            if keeps.counters:
                return super().current(keeps)
            asked.append(cluster.device_names())
            if len(asked) == 1:
                raise ApiError("unreachable", "it is not known what claims were given", retry=Retry.LATER)
            return Offering(INVENTORY.offering.plain[:1])

    first = publish(cluster)
    first.stop()
    cluster.server._registry._gates -= {GATE}
    publish(cluster, cluster.publisher(Unsure()))
    assert [len(names) for names in asked] == [NINE_EACH, NINE_EACH]
    assert cluster.device_names() == ["gpu-0000-01-00-0"]
