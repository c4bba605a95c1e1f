"""Pages against real HTTP: the embedded API server, and scripted ones for what it never does."""

import json

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, StaticToken
from dra_driver.kube.paths import SLICES
from dra_driver.kube.watch import Listing, objects, pages
from tests.kube.support.http_script import ScriptedServer


def create(embedded, *names: str) -> None:
    for name in names:
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool}
        wire = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        embedded.create(wire)


def names_of(found) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def scripted(server: ScriptedServer) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def page(*names: str, token: str = "", version: str = "5") -> dict:
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}


def gone(token: str = "") -> dict:
    metadata = {"continue": token} if token else {}
    return {"kind": "Status", "metadata": metadata, "code": 410, "reason": "Expired", "message": "too old"}


def test_every_object_comes_once_in_pages_that_show_one_moment(api, embedded):
    create(embedded, "a", "b", "c", "d", "e")
    listing = Listing(api, SLICES, limit=2)
    first = listing.next_page()
    create(embedded, "f")
    rest = [listing.next_page(), listing.next_page()]
    assert [names_of(p.objects) for p in (first, *rest)] == [["a", "b"], ["c", "d"], ["e"]]
    assert [(p.is_first, p.is_last) for p in (first, *rest)] == [(True, False), (False, False), (False, True)]
    assert {p.resource_version for p in rest} == {first.resource_version}


def test_a_list_is_asked_for_with_a_limit_and_without_a_resource_version(api, embedded):
    create(embedded, "a", "b", "c")
    assert names_of(objects(api, SLICES, limit=2)) == ["a", "b", "c"]
    queries = [e.query for e in embedded.log.entries(contains=SLICES) if e.method == "GET"]
    assert [q["limit"] for q in queries] == ["2", "2"]
    assert not [q for q in queries if "resourceVersion" in q]


def test_a_list_whose_token_expired_continues_after_the_last_object(api, embedded):
    create(embedded, "a", "b", "c", "d")
    listing = Listing(api, SLICES, limit=2)
    first = listing.next_page()
    embedded.compact()
    create(embedded, "e")
    second, third = listing.next_page(), listing.next_page()
    assert [names_of(p.objects) for p in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert not second.is_first
    assert third.resource_version == first.resource_version  # a watch from there misses nothing


def test_a_list_whose_token_expired_without_a_new_one_starts_again():
    answers = [(200, page("a", token="t1")), (410, gone()), (200, page("a", token="t2", version="9")), (200, page("b"))]
    with ScriptedServer(lambda e: e.answer(*answers.pop(0))) as server:
        found = list(pages(scripted(server), "/x"))
    assert [(names_of(p.objects), p.is_first, p.resource_version) for p in found] == [
        (["a"], True, "5"),
        (["a"], True, "9"),
        (["b"], False, "9"),
    ]


def test_a_list_that_expires_again_and_again_ends_with_an_error():
    def script(exchange):
        exchange.answer(*((410, gone("again")) if "continue=" in exchange.path else (200, page("a", token="t"))))

    with ScriptedServer(script) as server, pytest.raises(ApiError) as caught:
        list(pages(scripted(server), "/x", wait=lambda seconds: None))
    assert caught.value.code == "api.gone"
    assert len(server.seen) < 10


def test_a_busy_server_is_asked_again_no_sooner_than_it_asked_for():
    answers = [(429, {}, {"Retry-After": "60"}), (503, {}, {"Retry-After": "1"}), (200, page("a"))]
    waits = []
    with ScriptedServer(lambda e: e.answer(*answers.pop(0))) as server:
        assert names_of(objects(scripted(server), "/x", wait=waits.append)) == ["a"]
    assert 60.0 <= waits[0] <= 70.0
    assert 1.0 <= waits[1] <= 10.0


def test_a_server_that_is_not_there_is_not_waited_for():
    waits = []
    client = KubeApi(Credentials("http://127.0.0.1:1", StaticToken()))
    with pytest.raises(ApiError) as caught:
        list(objects(client, "/x", wait=waits.append))
    assert (caught.value.code, waits) == ("api.unreachable", [])


def test_an_interrupted_list_continues_where_it_was():
    answers, paths = [(200, page("a", token="t1")), (500, {}), (200, page("b"))], []

    def script(exchange):
        paths.append(exchange.path)
        exchange.answer(*answers.pop(0))

    with ScriptedServer(script) as server:
        assert names_of(objects(scripted(server), "/x", wait=lambda seconds: None)) == ["a", "b"]
    assert ["continue=t1" in path for path in paths] == [False, True, True]


def test_a_list_that_would_have_to_wait_for_too_long_is_an_error():
    with (
        ScriptedServer(lambda e: e.answer(429, {}, {"Retry-After": "100"})) as server,
        pytest.raises(ApiError) as caught,
    ):
        list(objects(scripted(server), "/x", wait=lambda seconds: None))
    assert caught.value.code == "api.too-many-requests"
    assert len(server.seen) == 2


def test_a_page_that_is_too_large_is_asked_for_again_with_fewer_objects():
    large = "x" * (3 << 20)

    def script(exchange):
        limit = int(exchange.path.partition("limit=")[2].partition("&")[0])
        items = [{"metadata": {"name": str(n)}, "large": large} for n in range(min(limit, 4))]
        exchange.answer(200, {"metadata": {"resourceVersion": "5"}, "items": items})

    with ScriptedServer(script) as server:
        assert len(list(objects(scripted(server), "/x", limit=8))) == 2
        assert [e.path.partition("limit=")[2] for e in server.seen] == ["8", "4", "2"]


@pytest.mark.parametrize(
    "answer",
    [
        {"items": []},
        {"metadata": [], "items": []},
        {"metadata": {"resourceVersion": 5}, "items": []},
        {"metadata": {"resourceVersion": "5"}, "items": {}},
        {"metadata": {"resourceVersion": "5"}, "items": ["a"]},
        {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": "a"}]},
        {"metadata": {"resourceVersion": "5", "continue": ["a"]}, "items": []},
    ],
)
def test_what_is_not_a_list_of_objects_is_a_clear_error(answer):
    with ScriptedServer(lambda e: e.answer(200, answer)) as server, pytest.raises(ApiError) as caught:
        Listing(scripted(server), "/x").next_page()
    assert caught.value.code == "api.bad-answer"
    assert "GET /x" in caught.value.message


def test_a_list_without_an_end_is_an_error_at_the_limit_of_objects():
    numbers = iter(range(1_000_000))
    with ScriptedServer(lambda e: e.answer(200, page("a", token=str(next(numbers))))) as server:
        listing = Listing(scripted(server), "/x", max_objects=20)
        for _ in range(20):
            listing.next_page()
        with pytest.raises(ApiError, match="more than 20 objects"):
            listing.next_page()
        assert len(server.seen) == 21


def test_the_embedded_server_ignores_a_limit_with_resource_version_zero(api, embedded):
    create(embedded, "a", "b", "c")
    assert len(api.request("GET", SLICES, query={"limit": "1", "resourceVersion": "0"})["items"]) == 3
    with pytest.raises(ApiError, match="continue key"):
        api.request("GET", SLICES, query={"limit": "1", "continue": json.dumps("x")})
