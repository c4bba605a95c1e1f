"""Equal nodes are judged once, and each gets the answer that it would get by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.capacity import Replica, ReplicaShape
from dra_driver.allocation.explanation import explain
from dra_driver.allocation.rules import Features
from dra_driver.allocation.simulation import Placer
from dra_driver.allocation.usage import unsuitable_reason, usage_of
from dra_driver.tools.fleet.summary import slice_tree
from tests.allocation.support import allocation_worlds as wire

Wire = dict[str, Any]
unhurried = settings(deadline=None, max_examples=150)
NODES = [f"nd-{index}-x" for index in range(7)]  # no name is part of another text
VERSIONS = st.sampled_from(["1.34", "1.35", "1.36", "1.37"])


def whole_gpus(name: str, kind: int) -> list[Wire]:
    """Return the slices of a node of one of a few kinds; identifiers differ from node to node."""
    if kind == 0:
        return wire.partitioned(name, 2, 2)
    devices = [
        wire.gpu(f"gpu-{n}", kind="whole", index=n % 2, uuid=f"{name}/{n}", domain=f"{name}/d") for n in range(3)
    ]
    if kind == 2:
        devices[1]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    if kind == 3:
        for one in devices:
            one["allowMultipleAllocations"] = True
            one["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": {"default": "30Gi"}}}
    if kind == 4:
        return [wire.pool(name, devices, count=2)]  # incomplete
    return [wire.pool(name, devices)]


@st.composite
def shared_pools(draw: st.DrawFn) -> list[Wire]:
    """Return pools that several nodes reach: by labels, all of them, or device by device."""
    devices = [wire.gpu(f"net-{n}", kind="part", index=n, uuid=f"net/{n}", domain="nd-1-x/d") for n in range(2)]
    found = []
    if draw(st.booleans()):
        found.append(wire.pool(draw(st.sampled_from(["fabric", "nd-3-x-more", "zz"])), devices, allNodes=True))
    if draw(st.booleans()):
        term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}
        found.append(wire.pool("racks", devices, nodeSelector={"nodeSelectorTerms": [term]}))
    if draw(st.booleans()):
        apart = [{**one, "nodeName": draw(st.sampled_from(NODES))} for one in devices]
        found.append(wire.pool("apart", apart, perDeviceNodeSelection=True))
    if draw(st.booleans()):
        foreign = wire.pool(draw(st.sampled_from(NODES)), devices, nodeName=draw(st.sampled_from(NODES)))
        found.append({**foreign, "metadata": {"name": "foreign"}})
    return found


@st.composite
def worlds(draw: st.DrawFn) -> Wire:
    kinds = [draw(st.sampled_from([0, 1, 1, 1, 2, 3, 4])) for _ in NODES]
    slices = [one for name, kind in zip(NODES, kinds, strict=True) for one in whole_gpus(name, kind)]
    slices += draw(shared_pools())
    devices = [(s["spec"]["pool"]["name"], d["name"]) for s in slices for d in s["spec"].get("devices", ())]
    held = draw(st.lists(st.sampled_from(devices), unique=True, max_size=4))
    nodes = [wire.node(name, rack=draw(st.sampled_from("aab"))) for name in NODES]
    for one in nodes:
        if draw(st.integers(0, 6)) == 0:
            one["spec"] = {"unschedulable": True}
    pod = draw(st.sampled_from([{}, {"spec": {"nodeSelector": {"rack": "a"}}}, {"spec": {"nodeName": NODES[2]}}]))
    return {
        "slices": slices,
        "nodes": nodes,
        "pod": pod,
        "allocated": [wire.allocated(one, name=f"holder-{n % 2}") for n, one in enumerate(held)],
        "claims": draw(claims()),
        "kubernetes": draw(VERSIONS),
        "features": draw(st.sampled_from([wire.WITH_SHARES, wire.ALL_FEATURES, {}])),
    }


@st.composite
def claims(draw: st.DrawFn) -> list[Wire]:
    requests = []
    for number in range(draw(st.integers(1, 2))):
        texts = [
            "true",
            f"{wire.attribute('kind')} == 'whole'",
            f"{wire.attribute('uuid')} != 'nd-2-x/0'",
            "device.x == 1",
        ]
        texts.append("device.attributes.all(d, device.attributes[d].size() > 1)")
        selectors = [draw(st.sampled_from(texts))]
        requests.append(wire.request(f"r{number}", count=draw(st.sampled_from([1, 2, 3, None])), selectors=selectors))
    compared = draw(st.sampled_from(["", "", "index", "domain", "uuid"]))
    constraints = [{"matchAttribute": f"{wire.DRIVER}/{compared}"}] if compared else []
    return [wire.claim(*requests, constraints=constraints)]


def allocator_of(world: Wire, kubernetes: str = "") -> Allocator:
    return Allocator(
        slices=world["slices"],
        classes=[wire.device_class()],
        allocated=world["allocated"],
        kubernetes=kubernetes or world["kubernetes"],
        features=Features.from_names(world["features"]),
    )


def explained(world: Wire, *, folds: bool, nodes: list[Wire] | None = None) -> Any:
    return explain(
        allocator_of(world),
        world["claims"],
        world["nodes"] if nodes is None else nodes,
        pod=world["pod"],
        newer=allocator_of(world, "1.37"),
        folds=folds,
    )


@unhurried
@given(worlds())
def test_equal_nodes_get_the_explanation_that_each_would_get_by_itself(world: Wire) -> None:
    apart = explained(world, folds=False)
    together = explained(world, folds=True)
    assert (apart.sentence, apart.ok, apart.aborts) == (together.sentence, together.ok, together.aborts)
    by_name = {one.node: one for one in apart.nodes}
    covered = []
    for one in together.nodes:
        assert replace(one, like=()) == by_name[one.node]  # byte for byte
        for name in (one.node, *one.like):
            covered.append(name)
            renamed = json.dumps(asdict(replace(one, like=()))).replace(one.node, name)
            assert shares_apart(json.loads(renamed)) == shares_apart(asdict(by_name[name]))
    assert sorted(covered) == NODES
    assert [one.node for one in together.nodes] == [n for n in NODES if n in {one.node for one in together.nodes}]


def shares_apart(verdict: Wire) -> Wire:
    """Return a verdict without the identifiers of shares, which are made of the device's whole name."""
    for result in (verdict["outcome"] or {}).get("results") or ():
        for one in result["devices"].get("results") or ():
            one.pop("shareID", None)
    return json.loads(json.dumps(verdict))


@unhurried
@given(worlds(), st.integers(1, 9))
def test_jobs_get_the_first_node_on_which_they_fit_however_full_the_cluster_becomes(world: Wire, count: int) -> None:
    placer = Placer(allocator_of(world), world["nodes"])
    held = list(world["allocated"])
    for number in range(count):
        [asked] = world["claims"]
        asked = {**asked, "metadata": {**asked["metadata"], "name": f"c-{number}", "uid": f"c-{number}"}}
        found = placer.place([asked], world["pod"])
        assert found == first_fit({**world, "allocated": held}, asked)
        if found is None:
            alone = explain(allocator_of({**world, "allocated": held}), [asked], world["nodes"], pod=world["pod"])
            assert placer.misfit_reason([asked], world["pod"]) == alone.sentence
            break
        given_out = {**asked, "status": {"allocation": found[1][0]}}
        held.append(given_out)
        placer.hold([given_out])


def first_fit(world: Wire, asked: Wire) -> Any:
    pod = allocator_of(world).for_claims([asked])
    for one in world["nodes"]:
        if unsuitable_reason(world["pod"], one):
            continue
        outcome = pod.allocate(one)
        if outcome.results is not None:
            return one["metadata"]["name"], outcome.results
        if not outcome.category.is_node_local:
            return None
    return None


def test_equal_nodes_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [wire.node(f"n-{n}") for n in range(100)]
    world = {
        "slices": [one for n in nodes for one in whole_gpus(n["metadata"]["name"], 1)],
        "allocated": [wire.allocated(("n-7", "gpu-0"))],
        "kubernetes": "1.35",
        "features": {},
    }
    judged = []
    from dra_driver.allocation.allocator import PodAllocator

    whole = PodAllocator.allocate
    monkeypatch.setattr(PodAllocator, "allocate", lambda self, node: judged.append(node) or whole(self, node))
    asked = wire.claim(wire.request(selectors=[f"{wire.attribute('kind')} == 'whole'"]))
    found = explain(allocator_of(world), [asked], nodes, folds=True)
    assert [(one.node, one.count) for one in found.nodes] == [("n-0", 99), ("n-7", 1)]
    assert len(judged) == 2


def made(name: str) -> list[Wire]:
    return whole_gpus(name, 1)[0]["spec"]["devices"]


def pool_of(name: str, devices: Any) -> Wire:
    return {**wire.pool(name, []), "spec": {**wire.pool(name, [])["spec"], "devices": devices}}


@pytest.mark.parametrize(
    "text", ["true", f"{wire.attribute('uuid')} == 'n-30/1'", f"{wire.attribute('domain')} < 'n-2'"]
)
@pytest.mark.parametrize("constraints", [(), ({"matchAttribute": f"{wire.DRIVER}/domain"},)])
def test_replicas_are_judged_like_the_devices_they_stand_for(text: str, constraints: Any) -> None:
    shape = ReplicaShape(wire.DRIVER, made("n-0"), {"uuid", "domain"}, made)
    nodes = [wire.node(f"n-{n}") for n in range(40)]
    base = {"allocated": [wire.allocated(("n-3", "gpu-0"))], "kubernetes": "1.35", "features": {}}
    fabric = wire.pool("fabric", [wire.gpu("net", kind="part", index=0, uuid="x", domain="n-5/d")], allNodes=True)
    asked = wire.claim(wire.request(count=2, selectors=[text]), constraints=constraints)
    for more in ([], [fabric]):
        found = [
            explain(
                allocator_of({**base, "slices": [*(pool_of(f"n-{n}", devices(f"n-{n}")) for n in range(40)), *more]}),
                [asked],
                nodes,
                folds=True,
            )
            for devices in (lambda name: Replica(shape, name), made)
        ]
        assert found[0] == found[1]


def test_usage_and_picture_of_replicas_are_those_of_the_devices_they_stand_for() -> None:
    shape = ReplicaShape(wire.DRIVER, made("n-0"), {"uuid", "domain"}, made)
    held = [wire.allocated(("n-3", "gpu-0"))]
    one = [pool_of(f"n-{n}", Replica(shape, f"n-{n}")) for n in range(40)]
    other = [pool_of(f"n-{n}", made(f"n-{n}")) for n in range(40)]
    assert usage_of(one, held) == usage_of(other, held)
    drawn = slice_tree(one, held)
    assert drawn == slice_tree(other, held)
    assert [(branch.name, len(branch.like)) for branch in drawn] == [("n-0", 38), ("n-3", 0)]
