"""Watches over real HTTP: resuming, bookmarks, selection, the two forms of 410, endings."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.support.api.embedded_client import SLICES, slice_wire
from tests.support.waiting import until


def _names(events):
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def test_a_watch_from_a_version_has_the_later_events(client):
    client("POST", SLICES, slice_wire("a"))
    version = client("GET", SLICES)[1]["metadata"]["resourceVersion"]
    client("POST", SLICES, slice_wire("b"))
    watch = client.watch(SLICES, resourceVersion=version)
    assert _names([watch.next()]) == [("ADDED", "b")]
    client("PUT", f"{SLICES}/b", slice_wire("b", devices=[{"name": "x"}]))
    client("DELETE", f"{SLICES}/a")
    assert _names([watch.next(), watch.next()]) == [("MODIFIED", "b"), ("DELETED", "a")]
    watch.close()


@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}])
def test_a_watch_without_a_version_begins_with_the_existing_objects(client, start):
    client("POST", SLICES, slice_wire("a"))
    watch = client.watch(SLICES, **start)
    assert _names([watch.next()]) == [("ADDED", "a")]
    watch.close()


def test_initial_events_end_with_a_marked_bookmark(client):
    client("POST", SLICES, slice_wire("a"))
    watch = client.watch(
        SLICES, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    )
    assert watch.next()["type"] == "ADDED"
    mark = watch.next()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    watch.close()


def test_a_deletion_has_a_version_of_its_own(client):
    _, made = client("POST", SLICES, slice_wire("a"))
    version = made["metadata"]["resourceVersion"]
    watch = client.watch(SLICES, resourceVersion=version)
    client("DELETE", f"{SLICES}/a")
    assert int(watch.next()["object"]["metadata"]["resourceVersion"]) > int(version)
    watch.close()


def test_bookmarks_are_sent_if_allowed_and_at_the_end(api, client):
    api.bookmark_every_s = 0.05
    client("POST", SLICES, slice_wire("a"))
    api.request("POST", "/api/v1/nodes", body={"metadata": {"name": "elsewhere"}})
    watch = client.watch(SLICES, resourceVersion="1", allowWatchBookmarks="true", timeoutSeconds="1")
    assert watch.next()["type"] == "ADDED"
    mark = watch.next()
    assert mark["type"] == "BOOKMARK"
    assert int(mark["object"]["metadata"]["resourceVersion"]) == api.store.revision
    assert {event["type"] for event in watch.rest()} == {"BOOKMARK"}


def test_a_watch_without_bookmarks_ends_in_time_without_an_event(client):
    began = time.monotonic()
    assert client.watch(SLICES, timeoutSeconds="1").rest() == []
    assert time.monotonic() - began > 0.9


def test_an_object_that_leaves_the_selection_is_deleted_for_the_watch(client):
    def labelled(value):
        body = slice_wire("a")
        body["metadata"]["labels"] = {"team": value}
        return body

    watch = client.watch(SLICES, labelSelector="team=x")
    client("POST", SLICES, labelled("y"))
    client("PUT", f"{SLICES}/a", labelled("x"))
    client("PUT", f"{SLICES}/a", {**labelled("x"), "spec": slice_wire("a", devices=[{"name": "d"}])["spec"]})
    client("PUT", f"{SLICES}/a", labelled("y"))
    assert [watch.next()["type"] for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]
    watch.close()


def test_watches_select_by_field(client):
    watch = client.watch(SLICES, fieldSelector="spec.nodeName=n1,spec.driver=gpu.example.com")
    client("POST", SLICES, slice_wire("other", node="n2"))
    client("POST", SLICES, slice_wire("mine", node="n1"))
    assert _names([watch.next()]) == [("ADDED", "mine")]
    watch.close()


def test_a_compacted_version_is_an_error_event(api, client):
    version = client("POST", SLICES, slice_wire("a"))[1]["metadata"]["resourceVersion"]
    api.compact()
    watch = client.watch(SLICES, resourceVersion=version)
    assert watch.answer.status == 200
    (event,) = watch.rest()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_compacted_version_can_be_an_http_410(api, client):
    version = client("POST", SLICES, slice_wire("a"))[1]["metadata"]["resourceVersion"]
    api.compact()
    api.gone_as_http = True
    status, answer = client("GET", SLICES, watch="1", resourceVersion=version)
    assert (status, answer["code"]) == (410, 410)


def test_a_watch_can_start_from_a_list_after_the_compaction(api, client):
    client("POST", SLICES, slice_wire("a"))
    api.compact()
    version = client("GET", SLICES)[1]["metadata"]["resourceVersion"]
    watch = client.watch(SLICES, resourceVersion=version)
    client("POST", SLICES, slice_wire("b"))
    assert _names([watch.next()]) == [("ADDED", "b")]
    watch.close()


def test_open_watches_can_be_expired_or_dropped(api, client):
    for end, events in ((api.expire_watches, ["ERROR"]), (api.drop_watches, [])):
        watch = client.watch(SLICES, resourceVersion=str(api.store.revision))
        until(lambda: api.open_watches == 1)
        end()
        assert [event["type"] for event in watch.rest()] == events
        until(lambda: api.open_watches == 0)


def test_hanging_up_ends_an_open_watch(api, client):
    watch = client.watch(SLICES)
    until(lambda: api.open_watches == 1)
    api.close_connections()
    event = "none yet"
    with contextlib.suppress(OSError, ValueError):
        event = watch.next()
    assert event in (None, "none yet")


def test_the_watch_of_a_client_that_closes_its_connection_ends(api, client):
    watch = client.watch(SLICES, resourceVersion=str(api.store.revision))
    until(lambda: api.open_watches == 1)
    watch.answer.close()
    watch.close()
    until(lambda: api.open_watches == 0)


def test_the_history_of_versions_is_limited(api, client, monkeypatch):
    monkeypatch.setattr("dra_driver.simulator.store.HISTORY", 10)
    first = client("POST", SLICES, slice_wire("a"))[1]["metadata"]["resourceVersion"]
    for number in range(20):
        client("PUT", f"{SLICES}/a", slice_wire("a", devices=[{"name": f"d{number}"}]))
    (event,) = client.watch(SLICES, resourceVersion=first).rest()
    assert event["object"]["code"] == 410
    newest = client("GET", f"{SLICES}/a")[1]["metadata"]["resourceVersion"]
    watch = client.watch(SLICES, resourceVersion=str(int(newest) - 2))
    assert [watch.next()["type"] for _ in range(2)] == ["MODIFIED", "MODIFIED"]
    watch.close()
