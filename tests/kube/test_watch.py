"""Watch against real HTTP. Random numbers and waits are injected, so that hours pass in milliseconds."""

import pytest

from dra_driver.base.machine import Backoff
from dra_driver.kube.answers import Changed, Connected, Deleted, Listed
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.paths import SLICES
from tests.support.waiting import until


def slice_wire(name: str, node: str = "n1") -> dict:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "nodeName": node, "pool": pool},
    }


def test_what_exists_is_listed_and_every_change_follows(api, embedded, follow):
    embedded.create(slice_wire("a"))
    follower = follow(api, field_selector="spec.nodeName=n1")
    assert [o["metadata"]["name"] for o in follower.next(Listed).objects] == ["a"]
    follower.next(Connected)
    embedded.create(slice_wire("elsewhere", node="n2"))
    embedded.create(slice_wire("b"))
    assert follower.next(Changed).wire["metadata"]["name"] == "b"
    api.request("DELETE", f"{SLICES}/a")
    assert follower.next(Deleted).wire["metadata"]["name"] == "a"


def test_a_stream_that_ends_is_resumed_without_a_new_list(api, embedded, follow):
    follower = follow(api)
    follower.next(Listed)
    follower.next(Connected)
    until(lambda: embedded.open_watches == 1)
    embedded.drop_watches()
    follower.next(Connected)
    embedded.create(slice_wire("a"))
    assert follower.next(Changed).wire["metadata"]["name"] == "a"
    lists = [e for e in embedded.log.entries(contains=SLICES) if "watch" not in e.query]
    assert len(lists) == 1


@pytest.mark.parametrize("as_http", [True, False])
def test_a_watch_whose_history_is_gone_begins_again_with_a_list(api, embedded, follow, as_http):
    embedded.gone_as_http = as_http
    follower = follow(api)
    follower.next(Listed)
    follower.next(Connected)
    embedded.create(slice_wire("a"))
    follower.next(Changed)
    until(lambda: embedded.open_watches == 1)
    embedded.expire_watches()
    listed = follower.next(Listed)
    assert [o["metadata"]["name"] for o in listed.objects] == ["a"]
    follower.next(Connected)


def test_a_bookmark_advances_the_resource_version_and_is_not_an_event(api, embedded, follow):
    embedded.bookmark_every_s = 0.02
    follower = follow(api, field_selector="spec.nodeName=n1")
    first = follower.next(Listed).resource_version
    follower.next(Connected)
    embedded.create(slice_wire("elsewhere", node="n2"))
    revision = embedded.store.revision
    until(lambda: follower.watch._version == str(revision))
    until(lambda: embedded.open_watches == 1)
    embedded.drop_watches()
    follower.next(Connected)
    watches = [e.query["resourceVersion"] for e in embedded.log.entries(contains=SLICES) if "watch" in e.query]
    assert watches[0] == first
    assert int(watches[-1]) == revision > int(first)


def test_an_api_server_that_restarts_is_found_again(api, embedded, follow):
    follower = follow(api, backoff=Backoff(base_s=0.01))
    follower.next(Listed)
    follower.next(Connected)
    port = int(embedded.url.rpartition(":")[2])
    embedded.stop()
    until(lambda: follower.watch.fault is not None)
    embedded.create(slice_wire("a"))
    embedded.start(port)
    while not isinstance(event := follower.events.get(timeout=60), Changed):
        assert isinstance(event, Connected | Listed)
    assert event.wire["metadata"]["name"] == "a"
    assert follower.watch.fault is None


def test_the_wait_after_failures_grows_and_is_at_least_as_long_as_the_server_asks_for(api, embedded, follow):
    waits = []
    embedded.faults.fail_next(503, count=5, contains="resourceslices")
    embedded.faults.fail_next(429, count=1, contains="resourceslices", retry_after_s=20)
    follower = follow(api, backoff=Backoff(base_s=1.0, max_s=8.0, uniform=lambda low, high: high), wait=waits.append)
    follower.next(Listed)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 28.0]


def test_the_server_is_asked_to_end_each_stream_after_a_random_time(api, embedded, follow):
    asked = []
    follower = follow(api, uniform=lambda low, high: asked.append((low, high)) or 300.7)
    follower.next(Listed)
    follower.next(Connected)
    assert asked == [(240.0, 540.0)]
    until(lambda: embedded.open_watches == 1)
    embedded.drop_watches()
    follower.next(Connected)
    query = next(e.query for e in embedded.log.entries(contains=SLICES) if "watch" in e.query)
    assert query["timeoutSeconds"] == "300"
    assert query["allowWatchBookmarks"] == "true"


def test_a_refused_token_is_read_again_when_a_stream_is_opened(embedded, follow, tmp_path):
    config = embedded.write_kubeconfig(tmp_path / "config", token_file=tmp_path / "token")
    follower = follow(KubeApi(load_credentials(str(config))))
    follower.next(Listed)
    follower.next(Connected)
    embedded.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    until(lambda: embedded.open_watches == 1)
    embedded.drop_watches()
    follower.next(Connected)
    assert [e.status for e in embedded.log.entries(contains=SLICES)].count(401) == 1


def test_a_list_of_many_pages_comes_page_by_page_and_the_watch_begins_at_the_first_ones_version(api, embedded, follow):
    for name in "abcde":
        embedded.create(slice_wire(name))
    follower = follow(api, page_size=2)
    pages = [follower.next(Listed) for _ in range(3)]
    follower.next(Connected)
    assert [(len(p.objects), p.is_first, p.is_last) for p in pages] == [
        (2, True, False),
        (2, False, False),
        (1, False, True),
    ]
    until(lambda: embedded.open_watches == 1)
    watch = next(e.query for e in embedded.log.entries(contains=SLICES) if "watch" in e.query)
    assert watch["resourceVersion"] == pages[0].resource_version


def test_a_new_connection_is_a_renewal_only_if_the_stream_before_it_ended_in_time(api, embedded, follow):
    now = [0.0]
    follower = follow(api, uniform=lambda low, high: 300.0, clock=lambda: now[0])
    follower.next(Listed)
    assert not follower.next(Connected).is_renewal
    for moment, is_renewal in ((299.0, True), (400.0, False), (700.0, True)):
        until(lambda: embedded.open_watches == 1)
        now[0] = moment
        embedded.drop_watches()
        assert follower.next(Connected).is_renewal is is_renewal
