"""Streams of a watch that a scripted server cuts, silences or spoils, over real HTTP."""

import json
import threading

import pytest

from dra_driver.base.machine import Backoff
from dra_driver.kube.answers import Changed, Connected, Deleted, Listed, check_slice
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial
from tests.kube.support.http_script import ScriptedServer
from tests.support.api.certificates import make_ca, make_leaf, server_context
from tests.support.waiting import until


def scripted_watch(server: ScriptedServer, **options) -> tuple[KubeApi, dict]:
    options.setdefault("backoff", Backoff(base_s=0.001, max_s=0.01))
    return KubeApi(Credentials(server.url, StaticToken())), options


def listing(exchange, version="5"):
    exchange.answer(200, {"metadata": {"resourceVersion": version}, "items": []})


def event(kind: str, version: str, name: str = "a") -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}).encode()


def test_a_stream_that_falls_silent_is_replaced(follow):
    """A half-open connection: the server is gone without closing it, and only the read timeout ends it."""
    streams = []

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        streams.append(exchange.path)
        exchange.begin_stream()
        if len(streams) == 1:
            exchange.server.stopping.wait(60)
        else:
            exchange.send_piece(event("ADDED", "6") + b"\n")
            exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server, uniform=lambda low, high: 0.1, silence_s=0.1)
        follower = follow(api, **options)
        follower.next(Listed)
        follower.next(Connected)
        follower.next(Connected)
        follower.next(Changed)


def test_events_cut_at_any_byte_are_put_together_again(follow):
    text = (
        event("ADDED", "6", "ä") + b"\n" + event("MODIFIED", "7", "b") + b"\r\n\n" + event("DELETED", "8", "c") + b"\n"
    )

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        exchange.begin_stream()
        for index in range(len(text)):
            exchange.send_piece(text[index : index + 1])
        exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, **options)
        follower.next(Listed)
        follower.next(Connected)
        assert follower.next(Changed).wire["metadata"]["name"] == "ä"
        follower.next(Changed)
        assert follower.next(Deleted).wire["metadata"]["name"] == "c"


@pytest.mark.parametrize("line", [b"garbage\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":[]}\n', b"[]\n"])
def test_a_line_that_is_not_an_event_leads_to_a_new_list(follow, line):
    lists = []

    def script(exchange):
        if "watch" not in exchange.path:
            lists.append(1)
            return listing(exchange)
        exchange.begin_stream()
        if len(lists) == 1:
            exchange.send_piece(line)
        exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, **options)
        for kind in (Listed, Connected, Listed, Connected):
            follower.next(kind)


def test_a_list_without_a_resource_version_is_not_taken_for_one(follow):
    answers = [{"items": []}, {"metadata": {}, "items": {}}, {"metadata": {"resourceVersion": "5"}, "items": None}]

    def script(exchange):
        if "watch" in exchange.path:
            exchange.begin_stream()
            exchange.server.stopping.wait(60)
            return
        exchange.answer(200, answers.pop(0))

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, **options)
        assert follower.next(Listed).resource_version == "5"


def test_stop_returns_at_once_while_the_stream_is_silent(api, follow):
    follower = follow(api)
    follower.next(Listed)
    follower.next(Connected)
    follower.stop()


def test_stop_returns_at_once_while_the_answer_has_not_begun(follow):
    reached = threading.Event()

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        reached.set()
        exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, **options)
        assert reached.wait(60)
        follower.stop()


def test_stop_returns_at_once_between_two_tries(follow):
    with ScriptedServer(lambda e: e.answer(500, {})) as server:
        follower = follow(plain_api(server), backoff=Backoff(base_s=3600.0, max_s=3600.0), wait=None)
        until(lambda: follower.watch.fault is not None)
        follower.stop()


def plain_api(server: ScriptedServer) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def test_over_tls_events_arrive_one_by_one_and_stop_returns_at_once(follow, tmp_path):
    make_ca(tmp_path, "ca")

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        exchange.begin_stream()
        exchange.send_piece(event("ADDED", "6") + b"\n")
        exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script, server_context(*make_leaf(tmp_path, "server", "ca"))) as server:
        material = TlsMaterial(ca_file=str(tmp_path / "ca.crt"))
        follower = follow(KubeApi(Credentials(server.url, StaticToken(), material)))
        for kind in (Listed, Connected, Changed):
            follower.next(kind)
        follower.stop()
    assert follower.events.empty()


def test_an_object_with_a_field_of_the_wrong_type_is_a_fault_and_not_an_event(follow):
    answers = [{"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}, "spec": []}]}]

    def script(exchange):
        if "watch" in exchange.path:
            exchange.begin_stream()
            exchange.server.stopping.wait(60)
            return
        exchange.answer(200, answers.pop(0)) if answers else listing(exchange)

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        faults, is_made = [], threading.Event()

        def wait(_):  # runs in the follower's thread, possibly before `follower` is assigned
            is_made.wait(60)
            faults.append(follower.watch.fault)

        follower = follow(api, check=check_slice, wait=wait, **options)
        is_made.set()
        assert follower.next(Listed).objects == ()
        follower.next(Connected)
    assert "ResourceSlice.metadata" in str(faults[0])


def test_a_watch_that_the_server_is_too_busy_for_is_resumed_without_a_list(follow):
    lists, waits = [], []

    def script(exchange):
        if "watch" not in exchange.path:
            lists.append(1)
            return listing(exchange)
        exchange.begin_stream()
        if not waits:
            busy = {"kind": "Status", "metadata": {}, "code": 429, "details": {"retryAfterSeconds": 60}}
            exchange.send_piece(json.dumps({"type": "ERROR", "object": busy}).encode() + b"\n")
        exchange.server.stopping.wait(60)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, wait=waits.append, **options)
        for kind in (Listed, Connected, Connected):
            follower.next(kind)
    assert len(lists) == 1
    assert waits[0] >= 60.0


def test_a_watch_whose_history_is_always_gone_lists_less_and_less_often(follow):
    waits = []

    def script(exchange):
        if "watch" in exchange.path:
            return exchange.answer(410, {"kind": "Status", "code": 410})
        return listing(exchange)

    with ScriptedServer(script) as server:
        api = plain_api(server)
        backoff = Backoff(base_s=1.0, max_s=10.0, uniform=lambda low, high: high)
        follower = follow(api, backoff=backoff, wait=lambda seconds: waits.append(seconds) or len(waits) > 6)
        for _ in range(6):
            follower.next(Listed)
        follower.watch.stop()
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]
