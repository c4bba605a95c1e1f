"""An API server that has more slices of one node than a node can have: nothing is kept of them, and nothing written."""

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.kube.answers import check_slice
from dra_driver.kube.paths import SLICES
from dra_driver.node.slices import watched_slices
from dra_driver.node.slices.watched_slices import StoredSlices
from tests.node.slices.support.slices import DRIVER, NODE, POOL, device_wire, gpu
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(watched_slices, "MAX_SLICES", 20)
    monkeypatch.setattr(watched_slices, "MAX_MEMORY", 1 << 20)


def foreign(name: str, size: int = 0) -> dict:
    pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [device_wire("a")]}
    metadata = {"name": name, "annotations": {"a": "x" * size}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def delete_foreign(cluster) -> None:
    for stored in cluster.slices():
        if stored["spec"]["pool"]["name"] == "other":
            cluster.server.request("DELETE", f"{SLICES}/{stored['metadata']['name']}")


@pytest.mark.parametrize(("count", "size"), [(30, 0), (6, 200_000)], ids=["too many", "too large"])
def test_too_many_slices_in_the_list_stop_publishing_until_they_are_gone(cluster, count, size):
    for number in range(count):
        cluster.server.create(foreign(f"f{number}", size))
    publisher = cluster.publisher()
    publisher.offer([gpu(0)])
    until(lambda: publisher.status().problems)
    assert publisher.status().problems[0].code == "api.slices-too-large"
    assert (publisher.status().slices, cluster.writes()) == (0, [])
    delete_foreign(cluster)
    assert publisher.wait_published(60)
    until(lambda: publisher.status().problems == ())
    assert cluster.device_names() == [gpu(0).name]


@pytest.mark.parametrize(("count", "size"), [(30, 0), (6, 200_000)], ids=["too many", "too large"])
def test_too_many_slices_in_the_watch_stop_publishing_until_they_are_gone(cluster, monkeypatch, count, size):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    with publisher._changed:  # the publisher deletes none of them before all have come
        for number in range(count):
            cluster.server.create(foreign(f"f{number}", size))
        publisher._schedule.disturbed = lambda: None
    until(lambda: publisher.status().problems)
    assert publisher.status().problems[0].code == "api.slices-too-large"
    del publisher._schedule.disturbed
    delete_foreign(cluster)
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
    assert len(cluster.device_names()) == 2


def test_slices_that_the_server_should_not_have_sent_take_no_room(cluster):
    stored = StoredSlices(driver=DRIVER, node=NODE)
    for number in range(100):
        wire = foreign(f"f{number}", 100_000)
        wire["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(number)}
        wire["spec"]["nodeName"] = "node-2"
        assert not stored.changed(wire)
    assert stored.all() == ()


def test_the_answers_to_our_own_writes_have_the_same_limit():
    stored = StoredSlices(driver=DRIVER, node=NODE)
    wire = foreign("a", 2 << 20)
    wire["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    with pytest.raises(ApiError) as caught:
        stored.wrote(wire)
    assert caught.value.code == "api.slices-too-large"


def test_room_that_a_slice_gives_back_is_room_again():
    stored = StoredSlices(driver=DRIVER, node=NODE)
    for number in range(50):
        wire = foreign("a", 600_000)
        wire["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(number)}
        assert stored.changed(wire)
        assert stored.deleted(wire)


@pytest.mark.parametrize("field", ["name", "uid", "resourceVersion"])
def test_a_slice_with_an_endless_name_is_a_bad_answer(field):
    wire = foreign("a")
    wire["metadata"] |= {"uid": "u", "resourceVersion": "1", field: "x" * 300}
    wire["spec"]["pool"]["name"] = POOL
    with pytest.raises(ApiError, match="253 characters") as caught:
        check_slice(wire)
    assert caught.value.code == "api.bad-answer"
