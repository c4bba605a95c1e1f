"""Watch against real HTTP. Random numbers and waits are injected, so that hours pass in milliseconds."""

import json
import queue
import threading
import time

import pytest

from dra_driver.kube import credentials
from dra_driver.kube.api import KubeApi
from dra_driver.kube.backoff import Backoff
from dra_driver.kube.kubeconfig import Credentials
from dra_driver.kube.paths import SLICES
from dra_driver.kube.shapes import check_slice
from dra_driver.kube.tls import TlsMaterial
from dra_driver.kube.tokens import StaticToken
from dra_driver.kube.watch import Changed, Connected, Deleted, Listed, Watch
from tests.kube.support.http_script import ScriptedServer
from tests.support.certificates import make_ca, make_leaf, server_context
from tests.support.waiting import until


class Follower:
    """Runs a watch in a thread and collects its events."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.events = watch, queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for event in self.watch.events():
            self.events.put(event)

    def next(self, kind, timeout: float = 10.0):
        event = self.events.get(timeout=timeout)
        assert isinstance(event, kind), event
        return event

    def stop(self) -> float:
        started = time.monotonic()
        self.watch.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return time.monotonic() - started


@pytest.fixture
def follow():
    followers = []

    def start(api, **options) -> Follower:
        options.setdefault("wait", lambda seconds: time.sleep(0.001))
        followers.append(Follower(Watch(api, SLICES, **options)))
        return followers[-1]

    yield start
    for follower in followers:
        follower.stop()


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
def test_history_that_is_gone_is_replaced_by_a_list(api, embedded, follow, as_http):
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


def test_a_bookmark_moves_our_place_in_the_history_and_is_no_event(api, embedded, follow):
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
    while not isinstance(event := follower.events.get(timeout=10), Changed):
        assert isinstance(event, Connected | Listed)
    assert event.wire["metadata"]["name"] == "a"
    assert follower.watch.fault is None


def test_failures_wait_longer_and_longer_and_at_least_as_long_as_the_server_wishes(api, embedded, follow):
    waits = []
    embedded.troubles.fail_next(503, count=5, contains="resourceslices")
    embedded.troubles.fail_next(429, count=1, contains="resourceslices", retry_after_s=20)
    follower = follow(api, backoff=Backoff(base_s=1.0, most_s=8.0, uniform=lambda low, high: high), wait=waits.append)
    follower.next(Listed)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 28.0]


def test_the_server_is_asked_to_end_each_stream_after_a_jittered_while(api, embedded, follow):
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


def scripted_watch(server: ScriptedServer, **options) -> tuple[KubeApi, dict]:
    options.setdefault("backoff", Backoff(base_s=0.001, most_s=0.01))
    return KubeApi(Credentials(server.url, StaticToken())), options


def listing(exchange, version="5"):
    exchange.answer(200, {"metadata": {"resourceVersion": version}, "items": []})


def event(kind: str, version: str, name: str = "a") -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}).encode()


def test_a_stream_that_falls_silent_is_replaced(follow):
    """Half-open: the server is gone and nobody said so; only the read timeout ends it."""
    streams = []

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        streams.append(exchange.path)
        exchange.begin_stream()
        if len(streams) == 1:
            exchange.server.stopping.wait(20)
        else:
            exchange.send_piece(event("ADDED", "6") + b"\n")
            exchange.server.stopping.wait(20)
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
        exchange.server.stopping.wait(20)
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
def test_a_line_that_is_no_event_leads_to_a_new_list(follow, line):
    lists = []

    def script(exchange):
        if "watch" not in exchange.path:
            lists.append(1)
            return listing(exchange)
        exchange.begin_stream()
        if len(lists) == 1:
            exchange.send_piece(line)
        exchange.server.stopping.wait(20)
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
            exchange.server.stopping.wait(20)
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
    assert follower.stop() < 1.0


def test_stop_returns_at_once_while_the_answer_has_not_begun(follow):
    reached = threading.Event()

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        reached.set()
        exchange.server.stopping.wait(20)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, **options)
        assert reached.wait(10)
        assert follower.stop() < 1.0


def test_stop_returns_at_once_between_two_tries(follow):
    with ScriptedServer(lambda e: e.answer(500, {})) as server:
        follower = follow(plain_api(server), backoff=Backoff(base_s=3600.0, most_s=3600.0), wait=None)
        until(lambda: follower.watch.fault is not None)
        assert follower.stop() < 1.0


def plain_api(server: ScriptedServer) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def test_a_refused_token_is_read_again_when_a_stream_is_opened(embedded, follow, tmp_path):
    config = embedded.write_kubeconfig(tmp_path / "config", token_file=tmp_path / "token")
    follower = follow(KubeApi(credentials.load(str(config))))
    follower.next(Listed)
    follower.next(Connected)
    embedded.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    until(lambda: embedded.open_watches == 1)
    embedded.drop_watches()
    follower.next(Connected)
    assert [e.status for e in embedded.log.entries(contains=SLICES)][-2:] == [401, 200] or embedded.open_watches == 1


def test_over_tls_events_arrive_one_by_one_and_stop_returns_at_once(follow, tmp_path):
    make_ca(tmp_path, "ca")

    def script(exchange):
        if "watch" not in exchange.path:
            return listing(exchange)
        exchange.begin_stream()
        exchange.send_piece(event("ADDED", "6") + b"\n")
        exchange.server.stopping.wait(20)
        return None

    with ScriptedServer(script, server_context(*make_leaf(tmp_path, "server", "ca"))) as server:
        material = TlsMaterial(ca_file=str(tmp_path / "ca.crt"))
        follower = follow(KubeApi(Credentials(server.url, StaticToken(), material)))
        for kind in (Listed, Connected, Changed):
            follower.next(kind)
        assert follower.stop() < 1.0
    assert follower.events.empty()


def test_an_object_that_is_not_built_as_its_kind_is_told_as_a_fault_and_no_event(follow):
    answers = [{"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}, "spec": []}]}]

    def script(exchange):
        if "watch" in exchange.path:
            exchange.begin_stream()
            exchange.server.stopping.wait(20)
            return
        exchange.answer(200, answers.pop(0)) if answers else listing(exchange)

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        faults = []
        follower = follow(api, check=check_slice, wait=lambda _: faults.append(follower.watch.fault), **options)
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
        exchange.server.stopping.wait(20)
        return None

    with ScriptedServer(script) as server:
        api, options = scripted_watch(server)
        follower = follow(api, wait=waits.append, **options)
        for kind in (Listed, Connected, Connected):
            follower.next(kind)
    assert len(lists) == 1
    assert waits[0] >= 60.0


def test_a_list_of_many_pages_comes_page_by_page_and_the_watch_begins_where_the_first_was(api, embedded, follow):
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


def test_a_watch_whose_history_is_always_gone_lists_more_and_more_seldom(follow):
    waits = []

    def script(exchange):
        if "watch" in exchange.path:
            return exchange.answer(410, {"kind": "Status", "code": 410})
        return listing(exchange)

    with ScriptedServer(script) as server:
        api = plain_api(server)
        backoff = Backoff(base_s=1.0, most_s=10.0, uniform=lambda low, high: high)
        follower = follow(api, backoff=backoff, wait=lambda seconds: waits.append(seconds) or len(waits) > 6)
        for _ in range(6):
            follower.next(Listed)
        follower.watch.stop()
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 10.0]


def test_a_stream_that_ends_in_time_is_renewed_and_one_that_ends_early_is_another_connection(api, embedded, follow):
    now = [0.0]
    follower = follow(api, uniform=lambda low, high: 300.0, clock=lambda: now[0])
    follower.next(Listed)
    assert not follower.next(Connected).is_renewal
    for moment, is_renewal in ((299.0, True), (400.0, False), (700.0, True)):
        until(lambda: embedded.open_watches == 1)
        now[0] = moment
        embedded.drop_watches()
        assert follower.next(Connected).is_renewal is is_renewal
