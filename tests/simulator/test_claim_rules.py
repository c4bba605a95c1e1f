"""The rules of the embedded API for claims, their status, templates and classes."""

from __future__ import annotations

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from tests.simulator.support.api_cases import (
    CLASSES,
    OPAQUE,
    POD,
    RESULT,
    allocation,
    alternatives,
    requests,
)
from tests.support.api.embedded_client import CLAIMS, Client, claim_wire

TEMPLATES = CLAIMS.replace("resourceclaims", "resourceclaimtemplates")
APPLY = "application/apply-patch+yaml"


@pytest.fixture
def server():
    return EmbeddedApi()


def causes(server, method, path, body, **more):
    with pytest.raises(ApiRefusal) as caught:
        server.request(method, path, body=body, **more)
    assert caught.value.status == 422, caught.value.message
    return [cause["field"] for cause in caught.value.wire()["details"]["causes"]]


def test_templates_obey_the_same_rules_below_spec_spec(server):
    body = {"metadata": {"name": "t"}, "spec": {"spec": claim_wire(**requests(count=-1))["spec"]}}
    assert causes(server, "POST", TEMPLATES, body) == ["spec.spec.devices.requests[0].exactly.count"]


def test_defaults_are_filled_in_and_status_is_ignored_at_creation(server):
    body = claim_wire(**requests(tolerations=[{"key": "a"}]))
    body["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    made = server.request("POST", CLAIMS, body=body)
    exactly = made["spec"]["devices"]["requests"][0]["exactly"]
    assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)
    assert exactly["tolerations"] == [{"key": "a", "operator": "Equal"}]
    assert made["status"] == {}


def test_a_spec_never_changes(server):
    made = server.request("POST", CLAIMS, body=claim_wire())
    made["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    assert causes(server, "PUT", f"{CLAIMS}/c", made) == ["spec"]


def test_alpha_fields_of_requests_are_dropped_on_135():
    server = EmbeddedApi(version="1.35")
    exactly = {"tolerations": [{"key": "a", "operator": "Exists"}], "capacity": {"requests": {"memory": "1Gi"}}}
    made = server.request("POST", CLAIMS, body=claim_wire(**requests(**exactly)))
    assert made["spec"]["devices"]["requests"][0]["exactly"].keys() == {"deviceClassName", "allocationMode", "count"}


@pytest.mark.parametrize(("label", "is_allowed"), [("true", True), ("True", False), ("false", False)])
def test_admin_access_needs_the_label_of_the_namespace(server, label, is_allowed):
    labels = {"resource.kubernetes.io/admin-access": label}
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops", "labels": labels}})
    path = CLAIMS.replace("default", "ops")
    body = claim_wire(**requests(adminAccess=True))
    if is_allowed:
        assert server.request("POST", path, body=body)["metadata"]["namespace"] == "ops"
    else:
        assert causes(server, "POST", path, body) == ["spec.devices.requests[0].adminAccess"]


# -- status -----------------------------------------------------------------------------------------------------------


def put_status(server, **status):
    stored = server.request("GET", f"{CLAIMS}/c")
    return server.request("PUT", f"{CLAIMS}/c/status", body={**stored, "status": status})


@pytest.fixture
def claimed(server):
    server.request("POST", CLAIMS, body=claim_wire())
    return server


def test_an_allocation_is_set_once_and_cleared_as_a_whole(claimed):
    put_status(claimed, allocation=allocation(), reservedFor=[POD])
    other = allocation({**RESULT, "device": "e"})
    body = {**claimed.request("GET", f"{CLAIMS}/c"), "status": {"allocation": other}}
    assert causes(claimed, "PUT", f"{CLAIMS}/c/status", body) == ["status.allocation"]
    put_status(claimed)
    assert put_status(claimed, allocation=other)["status"]["allocation"] == other


def test_status_writes_change_nothing_else(claimed):
    stored = claimed.request("GET", f"{CLAIMS}/c")
    body = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}, "status": {"allocation": allocation()}}
    made = claimed.request("PUT", f"{CLAIMS}/c/status", body=body)
    assert "labels" not in made["metadata"]
    made["status"] = {}
    assert "allocation" in claimed.request("PUT", f"{CLAIMS}/c", body=made)["status"]


def test_results_of_alternatives_need_both_names(server):
    server.request("POST", CLAIMS, body=claim_wire(**alternatives("big", "small")))
    body = {**server.request("GET", f"{CLAIMS}/c"), "status": {"allocation": allocation(RESULT)}}
    assert causes(server, "PUT", f"{CLAIMS}/c/status", body) == ["status.allocation.devices.results[0].request"]
    assert put_status(server, allocation=allocation({**RESULT, "request": "gpu/small"}))


def test_device_status_is_removed_with_the_allocation(claimed):
    put_status(claimed, allocation=allocation(), devices=[RESULT | {"data": {"a": 1}}])
    stored = claimed.request("GET", f"{CLAIMS}/c")
    del stored["status"]["allocation"]
    assert claimed.request("PUT", f"{CLAIMS}/c/status", body=stored)["status"] == {}


def test_a_claim_that_is_being_deleted_accepts_no_new_user(server):
    body = claim_wire()
    body["metadata"]["finalizers"] = ["example.com/keep"]
    server.request("POST", CLAIMS, body=body)
    put_status(server, allocation=allocation(), reservedFor=[POD])
    server.request("DELETE", f"{CLAIMS}/c")
    stored = server.request("GET", f"{CLAIMS}/c")
    stored["status"]["reservedFor"] += [{**POD, "uid": "v"}]
    assert causes(server, "PUT", f"{CLAIMS}/c/status", stored) == ["status.reservedFor[1]"]


def test_two_owners_apply_their_own_device_status(api, client):
    first, second = RESULT, {**RESULT, "driver": "nic.example.com"}
    client("POST", CLAIMS, claim_wire())
    stored = client("GET", f"{CLAIMS}/c")[1]
    client("PUT", f"{CLAIMS}/c/status", {**stored, "status": {"allocation": allocation(first, second)}})

    def apply(owner, *entries):
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": {"devices": list(entries)}}
        status, answer = Client(api)("PATCH", f"{CLAIMS}/c/status", body, content_type=APPLY, fieldManager=owner)
        assert status == 200, answer
        return [(e["driver"], e.get("data")) for e in answer["status"].get("devices", [])]

    first, second = ({k: v for k, v in entry.items() if k != "request"} for entry in (first, second))
    assert apply("gpu", {**first, "data": {"a": 1}}) == [("gpu.example.com", {"a": 1})]
    assert len(apply("nic", {**second, "data": {"b": 1}})) == 2
    assert apply("gpu", {**first, "data": {"a": 2}}) == [
        ("gpu.example.com", {"a": 2}),
        ("nic.example.com", {"b": 1}),
    ]
    assert apply("gpu") == [("nic.example.com", {"b": 1})]
    assert client("PATCH", f"{CLAIMS}/c/status", {}, content_type=APPLY)[0] == 400


# -- classes ----------------------------------------------------------------------------------------------------------


def class_wire(**spec):
    return {"metadata": {"name": "gpu.example.com"}, "spec": spec}


def test_the_spec_of_a_class_can_be_changed(server):
    server.request("POST", CLASSES, body=class_wire(selectors=[{"cel": {"expression": "true"}}]))
    made = server.request("PUT", f"{CLASSES}/gpu.example.com", body=class_wire(config=[{"opaque": OPAQUE}]))
    assert "selectors" not in made["spec"]
    assert made["metadata"]["generation"] == 2


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
def test_selectors_are_compiled_as_by_the_version(minor):
    server = EmbeddedApi(version=f"1.{minor}")
    shared = class_wire(selectors=[{"cel": {"expression": "device.allowMultipleAllocations"}}])
    if minor < 36:
        assert causes(server, "POST", CLASSES, shared) == ["spec.selectors[0].cel.expression"]
    else:
        assert server.request("POST", CLASSES, body=shared)


def test_extended_resource_names_need_their_gate():
    body = class_wire(extendedResourceName="example.com/gpu")
    assert EmbeddedApi(version="1.36").request("POST", CLASSES, body=body)["spec"]
    assert EmbeddedApi(version="1.35").request("POST", CLASSES, body=body)["spec"] == {}
