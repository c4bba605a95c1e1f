"""Documents that are small as text and large in memory are refused before they are parsed."""

import gc
import json
import threading
import time
import tracemalloc

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.kube import answers
from dra_driver.kube.answers import COSTLIEST, memory_of, read_line
from dra_driver.kube.api import CLAIM_MEMORY, KubeApi
from dra_driver.kube.connection import LARGE_BYTES, LargeTurn
from dra_driver.kube.kubeconfig import Credentials, StaticToken
from dra_driver.kube.watch import Listing
from tests.kube.support.http_script import ScriptedServer
from tests.kube.support.raw_server import OK, RawServer
from tests.support.waiting import unhindered

A_MIB = 1 << 20
REPEATED = [
    "[]",
    "{}",
    "[[]]",
    '{"":0}',
    '{"a":{}}',
    '{"a":[]}',
    '"ab"',
    '["ab"]',
    "0",
    "1000",
    "1.5",
    "1e5",
    "-1",
    "null",
]
DEVICE = {"name": "a", "attributes": {f"a{i}": {"string": f"value {i}"} for i in range(20)}}


def document(item: str, size: int = A_MIB) -> bytes:
    return f"[{','.join([item] * (size // (len(item) + 1)))}]".encode()


DOCUMENTS = {
    **{item: document(item) for item in REPEATED},
    "many keys": b"{" + b",".join(b'"%x":0' % number for number in range(100_000)) + b"}",
    "one wide character": ('["' + "a" * A_MIB + "\U0001f600" + '"]').encode(),
    "one wide escape": b'["' + b"a" * A_MIB + b'\\ud83d\\ude00"]',
    "a slice": json.dumps({"spec": {"devices": [DEVICE] * 128}}).encode(),
}


def taken(text: bytes) -> int:
    """Return how many bytes of memory a parsed document takes."""
    gc.collect()
    tracemalloc.start()
    try:
        parsed = json.loads(text)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del parsed
    return size


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_the_estimate_is_never_too_low_and_at_most_six_times_too_high(text):
    real = taken(text)
    assert 0.99 * real <= memory_of(text) <= 6 * real
    assert memory_of(text) <= COSTLIEST * len(text)


def server_with(body: bytes) -> RawServer:
    return RawServer(lambda: [OK + b"Content-Length: %d\r\n\r\n" % len(body), body])


def client(server) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def test_an_answer_that_would_take_too_much_memory_is_refused_before_it_is_parsed():
    body = b'{"items":' + document("[]", 7 * A_MIB) + b"}"
    with server_with(body) as server:
        api = client(server)
        tracemalloc.start()
        try:
            with pytest.raises(ApiError, match="more than 32 MiB of memory") as caught:
                api.request("GET", "/x", timeout_s=60)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert caught.value.code == "api.answer-too-large"
    assert peak < 32 * A_MIB


def test_a_claim_has_a_smaller_limit_because_many_are_read_at_once():
    body = b'{"metadata":{"name":"c","namespace":"n","uid":"u"},"x":' + document("{}", A_MIB // 4) + b"}"
    assert CLAIM_MEMORY < memory_of(body) < answers.MEMORY_BYTES
    with server_with(body) as server, pytest.raises(ApiError) as caught:
        client(server).get_claim("n", "c")
    assert caught.value.code == "api.answer-too-large"


def test_a_refusal_with_a_huge_body_is_still_a_refusal():
    body = document("[]", 2 * A_MIB)
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body)
    with RawServer(lambda: [head, body]) as server, pytest.raises(ApiError) as caught:
        client(server).request("GET", "/x")
    assert caught.value.code == "api.forbidden"


def test_an_event_that_would_take_too_much_memory_is_unreadable():
    line = b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"x":' + document("{}", A_MIB) + b"}}"
    with pytest.raises(ValueError, match="16 MiB of memory"):
        read_line(line)


def test_a_page_that_would_take_too_much_memory_is_asked_for_again_with_fewer_objects():
    objects = [{"metadata": {"name": str(number)}, "x": [[]] * 2000} for number in range(200)]

    def script(exchange):
        query = dict(part.split("=") for part in exchange.path.partition("?")[2].split("&"))
        first, limit = int(query.get("continue", "0")), int(query["limit"])
        metadata = {"resourceVersion": "1"}
        if first + limit < len(objects):
            metadata["continue"] = str(first + limit)
        exchange.answer(200, {"metadata": metadata, "items": objects[first : first + limit]})

    with ScriptedServer(script) as server:
        listing, found = Listing(client(server), "/x"), []
        while not listing.is_done:
            found += [one["metadata"]["name"] for one in listing.next_page().objects]
    assert found == [str(number) for number in range(200)]


def test_large_answers_are_read_one_at_a_time_and_small_ones_pass_them():
    held = LargeTurn(time.monotonic() + 60)
    held.take()
    body = b'{"a":"' + b"x" * 4 * LARGE_BYTES + b'"}'
    try:
        with server_with(body) as large, server_with(b'{"a":1}') as small:
            assert unhindered(lambda: client(small).request("GET", "/x")) == {"a": 1}
            with pytest.raises(ApiError) as caught:
                client(large).request("GET", "/x", timeout_s=0.3)
            waiting = threading.Thread(target=client(large).request, args=("GET", "/x"), kwargs={"timeout_s": 60})
            waiting.start()
            held.end()
            waiting.join(60)
            assert not waiting.is_alive()
    finally:
        held.end()
    assert caught.value.code == "api.timeout"
