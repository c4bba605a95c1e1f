"""The rows of the console's page of claims: what is stuck is seen, with its node and its reason."""

from __future__ import annotations

import pytest

from dra_driver.base.errors import InputError
from dra_driver.tools.console.board import Board, attention, trimmed
from dra_driver.tools.console.pages_of_claims import claims_page, device_page

LONG_AGO = "2026-01-01T00:00:00Z"


def add(board, kind, name, spec, status):
    wire = {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status}
    board.change(kind, trimmed(kind, wire))


def held_claim(board, name):
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": name}
    user = {"resource": "pods", "name": f"{name}-pod", "uid": "u"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    add(board, "ResourceClaim", name, {}, status)


def pod_on_node(board, claim, phase, state, since=LONG_AGO):
    spec = {"nodeName": "n1", "containers": [{"name": "main"}]}
    spec["resourceClaims"] = [{"name": "g", "resourceClaimName": claim}]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    status = {"phase": phase, "conditions": [scheduled], "containerStatuses": [{"name": "main", "state": state}]}
    add(board, "Pod", f"{claim}-pod", spec, status)


def rows(board):
    return claims_page(board, "", "", 0, 100).wire()["rows"]


def test_a_claim_whose_pod_is_not_prepared_comes_before_those_that_are_in_use():
    board = Board.of_cluster("test")
    for name in ("a", "b", "c"):
        held_claim(board, name)
    pod_on_node(board, "a", "Running", {"running": {}})
    pod_on_node(board, "b", "Pending", {"waiting": {"reason": "ContainerCreating"}}, since="2999-01-01T00:00:00Z")
    pod_on_node(board, "c", "Pending", {"waiting": {"reason": "ContainerCreating"}})
    found = rows(board)
    assert [one["name"] for one in found] == ["c", "a", "b"]
    assert found[0]["trouble"].startswith("pod c-pod: not prepared for ")
    assert [one["trouble"] for one in found[1:]] == ["", ""]
    assert all(one["nodes"] == ["n1"] for one in found)


def test_a_container_that_does_not_run_is_told_with_its_reason():
    board = Board.of_cluster("test")
    held_claim(board, "a")
    pod_on_node(board, "a", "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    [found] = rows(board)
    assert found["trouble"] == "pod a-pod: container main: ImagePullBackOff: no such image"


@pytest.mark.parametrize(("resource", "count"), [("example.com/gpu", 1), ("other.com/gpu", 0)])
def test_a_pod_that_waits_for_an_extended_resource_of_a_class_is_listed(resource, count):
    board = Board.of_cluster("test")
    board.change("DeviceClass", {"metadata": {"name": "any"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    spec = {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}
    message = "0/3 nodes are available"
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    add(board, "Pod", "p", spec, {"phase": "Pending", "conditions": [condition]})
    found = rows(board)
    assert len(found) == count
    assert [(one["claims"], one["trouble"]) for one in found] == [([resource], message)] * count


def test_the_fault_of_a_partitioned_gpu_is_told_once():
    board, gpu = Board.of_cluster("test"), "gpu-0000-1b-00-0"
    taint = {"key": "gpu.example.com/xid", "value": "119", "effect": "NoSchedule", "timeAdded": LONG_AGO}
    later = {**taint, "timeAdded": "2026-01-02T00:00:00Z"}
    devices = [{"name": f"{gpu}-mig-1g10gb-{place}", "taints": [later if place else taint]} for place in range(7)]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices}
    board.change("ResourceSlice", {"metadata": {"name": "s"}, "spec": spec})
    page = device_page(board, "n1", ("gpu.example.com", "n1", gpu)).wire()
    assert page["taints"] == [{"key": taint["key"], "value": "119", "effect": "NoSchedule", "since": LONG_AGO}]
    assert attention(board).wire()["counts"] == {"taint": 1}


def test_claims_are_grouped_by_node_also_those_whose_pods_are_not_known():
    board = Board.of_cluster("test")
    for name, node in (("a", "n10"), ("b", "n9"), ("c", "n9")):
        held_claim(board, name)
        board.find("ResourceClaim", "team", name)["status"]["allocation"]["devices"]["results"][0]["pool"] = node
        spec = {"driver": "gpu.example.com", "nodeName": node, "pool": {"name": node, "generation": 1}}
        board.change("ResourceSlice", {"metadata": {"name": node}, "spec": spec})
    add(board, "ResourceClaim", "waits", {}, {})
    page = claims_page(board, "", "", 0, 100, by="node").wire()
    lines = [one.get("heading") or one["name"] for one in page["rows"]]
    assert lines == ["n9", "b", "c", "n10", "a", "no node", "waits"]
    assert (page["matching"], page["lines"]) == (4, 7)
    assert [one["count"] for one in page["rows"] if "heading" in one] == [2, 1, 1]


def test_an_unknown_group_is_refused():
    with pytest.raises(InputError):
        claims_page(Board.of_cluster("test"), "", "", 0, 100, by="secret")
