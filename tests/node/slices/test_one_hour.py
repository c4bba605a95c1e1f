"""What one node writes in an hour to a server that drops, changes or refuses slices; and 2,000 after an outage.

The publisher is the real one, with its watch, on a real server; the test moves its clock and makes its steps.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import DeviceTaint, TaintEffect
from dra_driver.kube import api
from dra_driver.kube.answers import Connected
from dra_driver.kube.paths import SLICES
from dra_driver.kube.watch import WatchTimes
from dra_driver.node.slices.pool_sync import SPREAD_SECONDS, WritePace, WriteTimes
from dra_driver.node.slices.publisher import Publisher
from dra_driver.simulator.registry import Registry
from tests.node.slices.support.cluster import OfferingPublisher, SetOffers
from tests.node.slices.support.slices import DRIVER, NODE, gpu
from tests.support.waiting import until

HOUR = 3600.0
NOTE = (DeviceTaint("k", "", TaintEffect.NONE),)
FAULTY = (DeviceTaint("k", "", TaintEffect.NO_SCHEDULE),)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


class SteppedPublisher(OfferingPublisher):
    """A publisher whose writing thread is the test. Between two steps every event has arrived."""

    def __init__(self, cluster, clock: Clock) -> None:
        super().__init__(cluster.api(), SetOffers(), times=WriteTimes(clock=clock, uniform=random.Random(1).uniform))
        self.clock, self.cluster = clock, cluster
        cluster.publishers.append(self)
        self.start()
        until(lambda: self._watched.is_complete and cluster.server.open_watches)

    def _run(self, thread) -> None:
        pass

    def pass_time(self, seconds: float, *, every_s: float = 30.0, also=lambda: None) -> None:
        """Make each step when it is due; now and then do something `also`, and report unchanged offers."""
        end, next_report = self.clock.now + seconds, self.clock.now + every_s
        while self.clock.now < end:
            until(self._is_informed, what="all events")
            due = self._due_s()
            if due is not None and self.clock.now + due < next_report:
                self.clock.now += due
                self._attempt()
            else:
                self.clock.now, next_report = next_report, next_report + every_s
                also()
                self.publish_changes()

    def _is_informed(self) -> bool:
        stored = {(s["metadata"]["name"], s["metadata"]["resourceVersion"]) for s in self.cluster.slices()}
        with self._changed:
            known = {(s["metadata"]["name"], s["metadata"]["resourceVersion"]) for s in self._watched.own()}
        return stored == known


@pytest.fixture
def clock():
    return Clock()


def writes(cluster) -> list[str]:
    """Return the requests of the publisher that would store something."""
    return [e.method for e in cluster.server.log.writes("resourceslices") if "dryRun" not in e.query and e.user_agent]


def label(cluster) -> None:
    """Change the slices as a person does that labels them."""
    for number, stored in enumerate(cluster.slices()):
        stored["metadata"].setdefault("labels", {})["seen"] = f"{stored['metadata']['resourceVersion']}-{number}"
        cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)


def test_a_server_with_gates_off_gets_no_write_in_an_hour_whatever_others_do_to_labels(make_cluster, clock):
    gates = ("DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices")
    cluster = make_cluster(version="1.35", gates=dict.fromkeys(gates, False))
    publisher = SteppedPublisher(cluster, clock)
    publisher.offer([gpu(i) for i in range(200)], taints={gpu(0).name: NOTE, gpu(1).name: FAULTY})
    publisher.pass_time(60)
    assert publisher.status().is_published
    assert publisher.status().dropped == ("devices.taints",)
    cluster.server.log.clear()
    publisher.pass_time(HOUR, also=lambda: label(cluster))
    publisher.pass_time(60)  # the last change was seen
    assert publisher.status().is_published
    assert writes(cluster) == []


@pytest.fixture
def mutated(monkeypatch):
    """Let a webhook add something else to each slice that is written."""
    numbers = itertools.count()
    create, replace = Registry.create, Registry.replace

    def mutate(wire):
        for device in wire.get("spec", {}).get("devices", ()):
            device.setdefault("attributes", {})["webhook"] = {"int": next(numbers)}

    def mutating_create(self, kind, namespace, wire, *, is_dry=False):
        mutate(wire)
        return create(self, kind, namespace, wire, is_dry=is_dry)

    def mutating_replace(self, target, wire):
        mutate(wire)
        return replace(self, target, wire)

    monkeypatch.setattr(Registry, "create", mutating_create)
    monkeypatch.setattr(Registry, "replace", mutating_replace)
    return mutate


def test_a_webhook_that_adds_something_to_slices_causes_no_writes(make_cluster, clock, mutated):
    cluster = make_cluster()
    publisher = SteppedPublisher(cluster, clock)
    publisher.offer([gpu(i) for i in range(8)])
    publisher.pass_time(HOUR)
    assert publisher.status().is_published
    assert writes(cluster) == ["POST"]


def test_a_client_that_keeps_changing_slices_is_answered_at_most_sixty_times_an_hour(make_cluster, clock, mutated):
    cluster = make_cluster()
    publisher = SteppedPublisher(cluster, clock)
    publisher.offer([gpu(i) for i in range(8)])
    publisher.pass_time(HOUR, every_s=7.0, also=lambda: label(cluster))  # the webhook changes the devices as well
    assert 30 < len(writes(cluster)) <= 60
    assert publisher.status().problems[0].code == "api.overwritten"


@pytest.mark.parametrize("status", [400, 401, 403, 413, 422])
def test_a_server_that_refuses_slices_for_good_gets_at_most_twelve_writes_an_hour(make_cluster, clock, status):
    cluster = make_cluster(version="1.36")
    publisher = SteppedPublisher(cluster, clock)
    publisher.offer([gpu(i) for i in range(8)])
    publisher.pass_time(60)
    cluster.server.log.clear()
    for method in ("POST", "PUT", "DELETE"):
        cluster.server.faults.fail_next(status, count=10**9, method=method, contains="resourceslices")
    publisher.offer([gpu(i) for i in range(9)], taints={gpu(0).name: FAULTY})
    publisher.pass_time(HOUR, also=lambda: label(cluster))
    assert 8 <= len(writes(cluster)) <= 12
    assert len(cluster.server.log.writes("events")) == 1
    cluster.server.faults.clear()
    publisher.pass_time(600)
    assert publisher.status().is_published
    assert len(cluster.device_names()) == 9


def test_each_cause_of_a_refusal_is_one_event_an_hour(make_cluster, clock, monkeypatch):
    throttle = api.EventThrottle(clock)
    monkeypatch.setattr(api, "_throttle_of", lambda _api: throttle)
    cluster = make_cluster()
    publisher = SteppedPublisher(cluster, clock)
    for status, hours in ((403, 2), (422, 1)):
        cluster.server.faults.clear()
        cluster.server.faults.fail_next(status, count=10**9, method="POST", contains="resourceslices")
        publisher.offer([gpu(status % 100)])
        publisher.pass_time(hours * HOUR)
    sent = cluster.server.request("GET", "/api/v1/namespaces/default/events")["items"]
    counts = Counter(event["reason"] for event in sent)
    assert counts["SlicesRefusedForbidden"] in (2, 3)
    assert counts["SlicesRefusedInvalid"] in (1, 2)
    assert {event["involvedObject"]["name"] for event in sent} == {NODE}


class Outage:
    """An API server that can't be reached until a time. It is the lowest layer of the agents in this test."""

    def __init__(self, clock: Clock, until_s: float) -> None:
        self._clock, self._until_s = clock, until_s

    def request(self, *_, **__) -> dict:
        self.open()
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    def stream(self, *_, **__) -> Outage:
        return self

    def open(self) -> None:
        if self._clock.now < self._until_s:
            raise ApiError("unreachable", "down", retry=Retry.NOW)

    def lines(self) -> list[bytes]:
        return []

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


def requests_of_one_agent(seed: int, outage_s: float) -> list[float]:
    """Return when an agent asks a server that is back: its watch, its pending write, and what it asks in addition."""
    clock, uniform = Clock(), random.Random(seed).uniform
    back_at = clock.now + outage_s
    publisher = Publisher(
        Outage(clock, back_at),
        node=NODE,
        driver=DRIVER,
        offers=SetOffers(),
        times=WriteTimes(clock=clock, uniform=uniform),
    )
    watch = publisher._new_watch()
    watch._times, watch._version = WatchTimes(clock=clock, wait=clock.wait), "1"
    connected = next(event for event in watch.events() if isinstance(event, Connected))
    watching_at = clock.now
    publisher._record(connected, is_reconnect=True)
    asks_at = clock.now + (publisher._schedule.wait_s() or 0.0)
    clock.now, pace = back_at - outage_s, WritePace(clock=clock, uniform=uniform)
    while clock.now < back_at:
        clock.now += pace.admit(None) or pace.failed(ApiError("unreachable", "down", retry=Retry.NOW)) or 0.0
    return [at - back_at for at in (watching_at, asks_at, clock.now)]


@pytest.mark.parametrize("outage_s", [10.0, 30.0, 300.0])
def test_two_thousand_agents_come_back_to_a_restarted_server_at_different_times(outage_s):
    times = [at for seed in range(2000) for at in requests_of_one_agent(seed, outage_s)]
    a_second = Counter(int(at) for at in times)
    assert max(a_second.values()) < len(times) / 20
    assert max(times) <= 2 * SPREAD_SECONDS
    assert len(a_second) >= SPREAD_SECONDS


def test_a_refusal_while_roles_are_not_yet_read_delays_nothing_by_more_than_seconds(cluster):
    publisher = cluster.publisher()
    cluster.server.faults.fail_next(403, method="POST", contains="resourceslices")
    publisher.offer([gpu(0)])
    assert publisher.wait_published(10)
