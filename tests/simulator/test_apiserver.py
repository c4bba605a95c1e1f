"""The embedded API over real HTTP: verbs, versions, preconditions, owners, who may ask."""

from __future__ import annotations

import json
import threading

import pytest

from dra_driver.base.errors import UsageError
from dra_driver.simulator import store
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from tests.support.api.embedded_client import CLAIMS, SLICES, Client, claim_wire, slice_wire
from tests.support.ports import free_port


def test_a_created_object_has_the_metadata_that_the_server_sets(client):
    status, made = client("POST", SLICES, slice_wire(devices=[{"name": "a"}]))
    assert status == 201
    assert made["apiVersion"] == "resource.k8s.io/v1"
    assert made["kind"] == "ResourceSlice"
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) > 0
    assert client("GET", f"{SLICES}/s") == (200, made)


def test_generated_names_differ_and_keep_at_most_58_characters_of_the_prefix(client):
    body = slice_wire()
    body["metadata"] = {"generateName": "n" * 80 + "-"}
    names = [client("POST", SLICES, body)[1]["metadata"]["name"] for _ in range(2)]
    assert names[0] != names[1]
    assert all(len(name) == 63 for name in names)


def test_creating_an_existing_name_is_a_409_already_exists(client):
    client("POST", SLICES, slice_wire())
    status, answer = client("POST", SLICES, slice_wire())
    assert (status, answer["kind"], answer["reason"], answer["code"]) == (409, "Status", "AlreadyExists", 409)


def test_a_stale_put_is_a_409_conflict_and_a_fresh_one_raises_generation(client):
    _, made = client("POST", SLICES, slice_wire())
    made["spec"]["pool"]["generation"] = 2
    status, changed = client("PUT", f"{SLICES}/s", made)
    assert (status, changed["metadata"]["generation"]) == (200, 2)
    status, answer = client("PUT", f"{SLICES}/s", made)
    assert (status, answer["reason"]) == (409, "Conflict")
    assert "has been modified" in answer["message"]


def test_a_put_that_changes_nothing_writes_nothing(client):
    _, made = client("POST", SLICES, slice_wire())
    assert client("PUT", f"{SLICES}/s", made) == (200, made)


def test_a_put_without_resource_version_is_unconditional(client):
    client("POST", SLICES, slice_wire())
    changed = slice_wire()
    changed["spec"]["pool"]["generation"] = 7
    assert client("PUT", f"{SLICES}/s", changed)[0] == 200


def test_a_put_for_another_uid_is_a_conflict_and_for_another_name_a_bad_request(client):
    client("POST", SLICES, slice_wire())
    other = slice_wire()
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert client("PUT", f"{SLICES}/s", other)[0] == 409
    assert client("PUT", f"{SLICES}/s", slice_wire("t"))[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{SLICES}/none"),
        ("PUT", f"{SLICES}/none"),
        ("DELETE", f"{SLICES}/none"),
        ("GET", "/apis/resource.k8s.io/v1beta1/resourceslices"),
        ("GET", "/apis/apps/v1/deployments"),
        ("GET", f"{SLICES}/s/status"),
        ("POST", "/apis/resource.k8s.io/v1/namespaces/none/resourceclaims"),
    ],
)
def test_a_missing_object_or_kind_is_a_404_status(client, method, path):
    body = claim_wire() if method == "POST" else slice_wire("none") if method == "PUT" else None
    status, answer = client(method, path, body)
    assert (status, answer["kind"], answer["reason"]) == (404, "Status", "NotFound")


@pytest.mark.parametrize("body", [None, [], "text", {"kind": "Pod"}, {"spec": {"devices": "many"}}, {"metadata": 3}])
def test_bodies_that_cannot_be_read_are_a_400(client, body):
    status, answer = client("POST", SLICES, body)
    assert (status, answer["reason"]) == (400, "BadRequest")


def test_a_wrong_verb_is_a_405(client):
    assert client("PUT", SLICES, {})[0] == 405
    assert client("POST", f"{SLICES}/s", {})[0] == 405


def test_an_unknown_token_is_a_401_but_version_and_health_are_open(api):
    unknown = Client(api, token="wrong")
    assert unknown("GET", SLICES) == (
        401,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        },
    )
    assert unknown("GET", "/version")[1]["minor"] == "36"
    assert unknown("GET", "/readyz") == (200, b"ok")


def test_a_changed_token_is_required_at_once(api, client):
    assert client("GET", SLICES)[0] == 200
    api.token = "newer"
    assert client("GET", SLICES)[0] == 401


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
def test_the_version_is_the_one_asked_for(minor):
    with EmbeddedApi(version=f"1.{minor}") as api:
        assert Client(api, token="")("GET", "/version")[1]["gitVersion"] == f"v1.{minor}.0"


def test_an_unknown_version_or_gate_is_refused():
    with pytest.raises(UsageError, match=r"1\.33"):
        EmbeddedApi(version="1.33")
    with pytest.raises(UsageError, match="DRANothing"):
        EmbeddedApi(gates={"DRANothing": True})


def test_preconditions_of_a_delete_are_checked(client):
    _, made = client("POST", SLICES, slice_wire())
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    assert client("DELETE", f"{SLICES}/s", {"preconditions": {"uid": "other"}})[0] == 409
    assert client("DELETE", f"{SLICES}/s", {"preconditions": {"resourceVersion": "1"}})[0] == 409
    assert client("DELETE", f"{SLICES}/s", {"preconditions": {"uid": uid, "resourceVersion": version}})[0] == 200
    assert client("GET", f"{SLICES}/s")[0] == 404


def test_an_object_with_finalizers_is_deleted_when_the_last_is_removed(client):
    body = claim_wire()
    body["metadata"]["finalizers"] = ["example.com/keep"]
    client("POST", CLAIMS, body)
    _, marked = client("DELETE", f"{CLAIMS}/c")
    assert marked["metadata"]["deletionTimestamp"]
    assert client("GET", f"{CLAIMS}/c")[0] == 200
    del marked["metadata"]["finalizers"]
    assert client("PUT", f"{CLAIMS}/c", marked)[0] == 200
    assert client("GET", f"{CLAIMS}/c")[0] == 404


def test_slices_are_deleted_with_the_node_that_owns_them(client):
    _, node = client("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    body = slice_wire()
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"], "controller": True}
    ]
    client("POST", SLICES, body)
    client("POST", SLICES, slice_wire("of-nobody", node="n2"))
    client("DELETE", "/api/v1/nodes/n1")
    assert [item["metadata"]["name"] for item in client("GET", SLICES)[1]["items"]] == ["of-nobody"]


def test_lists_select_by_field_and_by_label(client):
    for name, node, label in (("a", "n1", "x"), ("b", "n2", "x"), ("c", "n1", "y")):
        body = slice_wire(name, node=node)
        body["metadata"]["labels"] = {"team": label}
        client("POST", SLICES, body)

    def names(**query):
        status, answer = client("GET", SLICES, **query)
        assert status == 200, answer
        assert answer["kind"] == "ResourceSliceList"
        assert int(answer["metadata"]["resourceVersion"]) > 0
        return [item["metadata"]["name"] for item in answer["items"]]

    assert names() == ["a", "b", "c"]
    assert names(fieldSelector="spec.nodeName=n1") == ["a", "c"]
    assert names(fieldSelector="spec.nodeName=n1,spec.driver=gpu.example.com,metadata.name!=a") == ["c"]
    assert names(labelSelector="team=x") == ["a", "b"]
    assert names(labelSelector="team,team!=x") == ["c"]
    assert names(labelSelector="!team") == []
    assert client("GET", SLICES, fieldSelector="spec.pool.name=n1")[0] == 400
    assert client("GET", SLICES, labelSelector="team in (x,y)")[0] == 400


def test_a_collection_is_deleted_by_selector(client):
    for name, node in (("a", "n1"), ("b", "n2")):
        client("POST", SLICES, slice_wire(name, node=node))
    assert client("DELETE", SLICES, fieldSelector="spec.nodeName=n1")[0] == 200
    assert [item["metadata"]["name"] for item in client("GET", SLICES)[1]["items"]] == ["b"]


def test_a_merge_patch_changes_only_what_it_names(client):
    client("POST", SLICES, slice_wire(devices=[{"name": "a"}]))
    patch = {"metadata": {"labels": {"x": "y"}}}
    status, patched = client("PATCH", f"{SLICES}/s", patch, content_type="application/merge-patch+json")
    assert status == 200
    assert patched["metadata"]["labels"] == {"x": "y"}
    assert patched["metadata"]["generation"] == 1
    stale = {"metadata": {"resourceVersion": "1", "labels": {"x": "z"}}}
    assert client("PATCH", f"{SLICES}/s", stale, content_type="application/merge-patch+json")[0] == 409
    assert client("PATCH", f"{SLICES}/s", [], content_type="application/json-patch+json")[0] in (400, 415)


def test_unknown_fields_are_dropped_nulls_are_absent_and_quantities_are_canonical(client):
    device = {"name": "a", "colour": "red", "capacity": {"memory": {"value": "1024Mi"}}, "taints": None}
    _, made = client("POST", SLICES, slice_wire(devices=[device], shade="dark"))
    assert made["spec"]["devices"] == [{"name": "a", "capacity": {"memory": {"value": "1Gi"}}}]
    assert "shade" not in made["spec"]


def test_empty_lists_are_not_stored(client):
    _, made = client("POST", SLICES, slice_wire(devices=[]))
    assert "devices" not in made["spec"]


def test_parallel_writers_never_lose_a_write(api, client):
    client("POST", SLICES, slice_wire())

    def bump(times):
        mine = Client(api)
        done = 0
        while done < times:
            _, seen = mine("GET", f"{SLICES}/s")
            seen["spec"]["pool"]["generation"] += 1
            done += mine("PUT", f"{SLICES}/s", seen)[0] == 200

    writers = [threading.Thread(target=bump, args=(20,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert client("GET", f"{SLICES}/s")[1]["spec"]["pool"]["generation"] == 81


def test_injected_faults_happen_as_often_as_requested_and_requests_are_logged(api, client):
    api.faults.fail_next(503, count=2, method="POST", contains="resourceslices", retry_after_s=3)
    assert client("GET", SLICES)[0] == 200
    assert [client("POST", SLICES, slice_wire())[0] for _ in range(3)] == [503, 503, 201]
    assert [entry.status for entry in api.log.writes("resourceslices")] == [503, 503, 201]
    assert api.log.counts == {"GET": 1, "POST": 3}
    api.log.clear()
    assert api.log.entries() == []


def test_a_connection_without_an_answer_can_be_injected(api, client):
    import http.client

    api.faults.fail_next(0)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        client("GET", SLICES)


def test_a_restarted_server_still_has_its_objects():
    api, port = EmbeddedApi(), free_port()
    for is_back in (False, True):
        api.start(port)
        if not is_back:
            Client(api)("POST", SLICES, slice_wire())
        assert Client(api)("GET", f"{SLICES}/s")[0] == 200
        api.stop()


def test_kubeconfig_holds_server_and_token_or_token_file(api, tmp_path):
    config = json.loads(api.write_kubeconfig(tmp_path / "a").read_text())
    assert config["clusters"][0]["cluster"]["server"] == api.url
    assert config["users"][0]["user"]["token"] == api.token
    config = json.loads(api.write_kubeconfig(tmp_path / "b", token_file=tmp_path / "token").read_text())
    assert (tmp_path / "token").read_text() == api.token
    assert config["users"][0]["user"] == {"tokenFile": str(tmp_path / "token")}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_objects_can_be_used_without_http():
    api = EmbeddedApi()
    wire = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **slice_wire()}
    api.create(wire)
    assert api.get(store.SLICES, "s")["spec"]["nodeName"] == "n1"
    assert len(api.items(store.SLICES)) == 1
    assert len(api.request("GET", SLICES)["items"]) == 1
    api.delete(store.SLICES, "s")
    with pytest.raises(ApiRefusal) as caught:
        api.get(store.SLICES, "s")
    assert (caught.value.status, caught.value.code) == (404, "api.not-found")
