from __future__ import annotations

from typing import Any

from dra_driver.tools.fleet.branches import claim_tree
from dra_driver.tools.fleet.summary import slice_tree
from dra_driver.tools.fleet.template import Branch
from tests.allocation.support.allocation_worlds import DRIVER, allocated, gpu, partitioned, pool


def flags(branches: list[Branch]) -> set[str]:
    return {flag.message for one in branches for flag in one.flags} | {
        flag for one in branches for flag in flags(one.children)
    }


def names(branch: Branch) -> list[str]:
    return [child.name for child in branch.children]


def used(claim: Any, pod: str) -> Any:
    status = {**claim["status"], "reservedFor": [{"resource": "pods", "name": pod, "uid": "1"}]}
    return {**claim, "status": status}


def pod(name: str, phase: str = "Running") -> Any:
    metadata = {"name": name, "namespace": "default", "uid": "1"}
    return {"metadata": metadata, "spec": {"nodeName": "a"}, "status": {"phase": phase}}


def test_the_tree_leads_from_node_to_pod() -> None:
    claim = used(allocated(("a", "gpu-0")), "train")
    [node] = slice_tree([pool("a", [gpu("gpu-0")])], [claim], [pod("train")])
    assert (node.kind, node.name) == ("node", "a")
    [device] = node.children[0].children
    assert names(device) == ["default/holder"]
    assert names(device.children[0]) == ["train"]
    assert not flags([node])


def test_a_partitioned_gpu_shows_how_much_of_it_is_held() -> None:
    [node] = slice_tree(partitioned("a", 1, 4), [used(allocated(("a", "gpu-0-2")), "p")], [pod("p")])
    [group] = node.children[0].children
    assert (group.name, group.fill) == ("gpu-0", 0.25)


def test_static_partitions_are_shown_below_their_gpu() -> None:
    [node] = slice_tree([pool("a", [gpu("g-mig-1"), gpu("g-mig-2"), gpu("h")])], [])
    assert names(node.children[0]) == ["g", "h"]


def test_pools_that_are_incomplete_or_stale_are_flagged() -> None:
    old = {**pool("a", [gpu("gpu-0")]), "metadata": {"name": "old"}}
    new = pool("a", [gpu("gpu-0")], generation=2, count=3)
    assert flags(slice_tree([old, new], [])) == {"incomplete: 1 of 3 slices", "1 slice of older generations"}


def test_a_claim_shows_what_is_wrong_with_its_device_and_since_when() -> None:
    faulty = gpu("gpu-0")
    since = "2026-11-22T10:02:00Z"
    faulty["taints"] = [{"key": "d/needs-reset", "value": "gpu-reset", "effect": "NoSchedule", "timeAdded": since}]
    slices = [pool("a", [faulty, gpu("gpu-1")])]
    claims = [used(allocated(("a", "gpu-0"), ("a", "gpu-1")), "p")]
    assert flags(claim_tree(claims, slices, [pod("p")])) == {
        "taint d/needs-reset=gpu-reset:NoSchedule since 2026-11-22T10:02:00Z"
    }


def test_a_claim_shows_what_its_status_says_of_its_devices() -> None:
    claim = used(allocated(("a", "gpu-0"), ("a", "gpu-1")), "p")
    entry = {"driver": DRIVER, "pool": "a", "device": "gpu-1", "data": {"uuid": "GPU-1"}}
    unhealthy = {"type": "Healthy", "status": "False", "reason": "Fault", "message": "d/xid=79"}
    claim["status"]["devices"] = [
        {**entry, "conditions": [{"type": "Ready", "status": "True", "reason": "x"}, unhealthy]}
    ]
    [found] = claim_tree([claim], [pool("a", [gpu("gpu-0"), gpu("gpu-1")])], [pod("p")])
    assert flags([found]) == {"unhealthy: d/xid=79"}
    first, second = (child for child in found.children if child.kind == "device")
    assert ("GPU-1" in first.text, "GPU-1" in second.text) == (False, True)


def test_what_is_held_but_not_published_is_shown() -> None:
    found = slice_tree([pool("a", [gpu("gpu-0")])], [used(allocated(("a", "gone")), "p")], [pod("p")])
    assert flags(found) == {"held, but not published"}


def test_claims_show_leaked_reservations_and_unused_allocations() -> None:
    slices = [pool("a", [gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2")])]
    claims = [
        used(allocated(("a", "gpu-0"), name="x"), "ended"),
        used(allocated(("a", "gpu-1"), name="y"), "absent"),
        allocated(("a", "gpu-2"), name="z"),
        used(allocated(("a", "gone"), name="w"), "starting"),
    ]
    found = claim_tree(claims, slices, [pod("ended", "Succeeded"), pod("starting", "Pending")])
    assert flags(found) == {
        "leaked reservation: the pod has ended",
        "leaked reservation: there is no such pod",
        "allocated, but no pod uses it",
        "not published any more",
        "its devices are not prepared yet",
    }
    assert found[0].children[0].name == f"{DRIVER}/a/gone"


def test_a_reservation_is_not_called_leaked_if_the_pods_are_unknown() -> None:
    claims = [used(allocated(("a", "gpu-0")), "p")]
    assert not flags(claim_tree(claims, [pool("a", [gpu("gpu-0")])]))
