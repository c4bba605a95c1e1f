"""An API server that refuses the dry run by which it is asked what it keeps: no device is renamed or withdrawn."""

import random

import pytest

from dra_driver.base.wire import DeviceTaint, ShareMode, TaintEffect
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.devices.rules import SharingRule, SharingRules
from dra_driver.node.slices import server_facts
from dra_driver.simulator.registry import Registry
from dra_driver.simulator.shapes import ApiRefusal
from tests.node.slices.support.cluster import Cluster, settled
from tests.node.slices.support.slices import gpu
from tests.support.facts import facts
from tests.support.partitionable import partitionable
from tests.support.waiting import until

RULES = SharingRules((SharingRule("three", mode=ShareMode.REPLICAS, replicas=3),), "node")
SHARED = build_inventory(facts(partitionable(1)), sharing=RULES).offering
PARTITIONS = build_inventory(facts(partitionable(1)), MigPolicy(is_dynamic=True)).offering
WHOLE = ["gpu-0000-01-00-0"]
REPLICAS = [f"{WHOLE[0]}-share-{index}" for index in range(3)]
FAULTY = {gpu(0).name: (DeviceTaint("k", "", TaintEffect.NO_SCHEDULE),)}
STATUSES = [401, 403, 422]


class Refusal:
    """What the server answers to dry runs; 0 for the truth. `asked` counts them."""

    def __init__(self) -> None:
        self.status, self.asked = 0, 0


@pytest.fixture
def refusal(monkeypatch):
    refusal, create = Refusal(), Registry.create

    def refusing(self, kind, namespace, wire, *, is_dry=False):
        refusal.asked += is_dry
        if is_dry and refusal.status:
            raise ApiRefusal(refusal.status, "x", "not now")
        return create(self, kind, namespace, wire, is_dry=is_dry)

    monkeypatch.setattr(Registry, "create", refusing)
    return refusal


def publish(cluster: Cluster, offering):
    publisher = cluster.publisher()
    publisher.offers.offering = offering
    publisher.publish_changes()
    assert publisher.wait_published(60), publisher.status()
    return publisher


def upgrade(cluster: Cluster, publisher) -> None:
    """Have the server upgraded under its clients, so that they ask again."""
    until(lambda: cluster.server.open_watches)
    cluster.server._dispatch._minor = cluster.server._registry._minor = 37
    cluster.server.drop_watches()
    until(lambda: publisher.status().server == "v1.37.0")
    assert publisher.wait_published(60)
    settled()


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("is_on", [True, False], ids=["gate on", "gate off"])
def test_shared_devices_keep_their_names_when_the_question_is_refused(make_cluster, refusal, status, is_on):
    cluster = make_cluster(version="1.36", gates={"DRAConsumableCapacity": is_on})
    publisher = publish(cluster, SHARED)
    names = cluster.device_names()
    assert names == (WHOLE if is_on else REPLICAS)
    refusal.status, before = status, refusal.asked
    upgrade(cluster, publisher)
    until(lambda: refusal.asked > before)
    assert cluster.device_names() == names
    until(lambda: publisher.status().keeps.shares is is_on)


@pytest.mark.parametrize("status", STATUSES)
def test_a_tainted_device_stays_published_when_the_question_is_refused(make_cluster, refusal, status):
    cluster = make_cluster(version="1.36", gates={"DRADeviceTaints": True})
    publisher = cluster.published([gpu(0), gpu(1)], taints=FAULTY)
    refusal.status = status
    upgrade(cluster, publisher)
    assert cluster.devices()[gpu(0).name]["taints"]


@pytest.mark.parametrize("version", ["1.34", "1.36"])
def test_partitions_stay_withdrawn_where_counters_were_dropped_and_the_question_is_refused(
    make_cluster, refusal, version
):
    cluster = make_cluster(version=version, gates={"DRAPartitionableDevices": False})
    publisher = publish(cluster, PARTITIONS)
    assert cluster.device_names() == WHOLE
    cluster.server.log.clear()
    refusal.status = 403
    upgrade(cluster, publisher)
    assert cluster.device_names() == WHOLE
    assert [e for e in cluster.server.log.writes("resourceslices") if "dryRun" not in e.query] == []


@pytest.mark.parametrize("status", STATUSES)
def test_a_restarted_agent_whose_question_is_refused_goes_by_what_its_slices_show(make_cluster, refusal, status):
    cluster = make_cluster(version="1.36")
    publish(cluster, SHARED).stop()
    refusal.status = status
    cluster.server.log.clear()
    assert publish(cluster, SHARED).status().keeps.shares
    assert cluster.device_names() == WHOLE
    assert [e for e in cluster.server.log.writes("resourceslices") if "dryRun" not in e.query] == []


def test_a_tainted_device_of_a_restarted_agent_stays_published_when_the_question_is_refused(make_cluster, refusal):
    cluster = make_cluster(version="1.36", gates={"DRADeviceTaints": True})
    cluster.published([gpu(0), gpu(1)], taints=FAULTY).stop()
    refusal.status = 403
    publisher = cluster.published([gpu(0), gpu(1)], taints=FAULTY)
    assert cluster.devices()[gpu(0).name]["taints"]
    assert publisher.status().keeps.taints


@pytest.mark.parametrize("status", STATUSES)
def test_without_any_answer_the_safe_form_is_published_until_the_server_answers(
    make_cluster, refusal, monkeypatch, status
):
    monkeypatch.setattr(server_facts, "AGAIN_MAX_SECONDS", 0.2)
    cluster = make_cluster(version="1.36")
    refusal.status = status
    publisher = publish(cluster, SHARED)
    assert cluster.device_names() == REPLICAS
    (problem,) = publisher.status().problems
    assert "asked again" in problem.message
    refusal.status = 0
    until(lambda: cluster.device_names() == WHOLE, what="the shared device")
    until(lambda: publisher.status().problems == ())


def test_a_server_that_refuses_every_dry_run_is_asked_again_at_longer_and_longer_intervals():
    class Clock:
        now = 0.0

    class Refusing:
        asked = 0

        def try_create(self, _wire):
            self.asked += 1
            raise server_facts.ApiError("bad-request", "a webhook does not support dry run", status=400)

    random.seed(1)
    clock, writer = Clock(), Refusing()
    asking = server_facts.Probe(writer, held=frozenset, clock=lambda: clock.now)
    content = server_facts.PoolContent(({"name": "a", "allowMultipleAllocations": True},))
    empty = server_facts.SliceSpec("d", "n", "p")
    for _ in range(100):
        asking.expired()
        asking.ask(content, empty, minor=36, known=frozenset())
        clock.now += asking.due_s if clock.now < 3600 else 0.0
    assert clock.now >= 3600
    assert 8 <= writer.asked <= 30
    asked = writer.asked
    asking.ask(content, empty, minor=36, known=frozenset())
    assert writer.asked == asked
