"""Random worlds: our allocator decides as this cluster's own scheduler does, verdict by verdict and device by device.

The pods are bound to nodes without a kubelet: nothing has to run, as only the scheduler's decision counts.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import yaml

from cluster.api import Object
from cluster.cluster import Cluster
from cluster.control_plane import gates_of
from cluster.random_world import ZONE, World, random_world
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request
from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.rules import Features
from dra_driver.base.quantity import Quantity

COUNT = 200 if os.environ.get("SOAK") else 40
BATCH = 40
NODES = {"bare-1": "east", "bare-2": "east", "bare-3": "west"}
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
CANARY = "canary.example.com"


@pytest.fixture
def bare_nodes(cluster: Cluster) -> Iterator[list[Object]]:
    """Nodes that the scheduler may use and that have no kubelet."""
    room = {"cpu": "64", "memory": "64Gi", "pods": "1000"}
    try:
        for name, zone in NODES.items():
            meta = {"name": name, "labels": {"bare": "yes", ZONE: zone}}
            cluster.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": meta,
                    "status": {"capacity": room, "allocatable": room},
                }
            )
        yield [cluster.api.get("Node", name) for name in NODES]
    finally:
        for name in NODES:
            cluster.api.delete("Node", name)


@pytest.fixture
def canary(cluster: Cluster) -> Iterator[None]:
    """Devices for the pods that show how far the scheduler has read."""
    yield
    cluster.api.delete("DeviceClass", CANARY)
    cluster.api.delete("ResourceSlice", CANARY)


@pytest.mark.smoke
def test_random_worlds_are_allocated_as_the_scheduler_does(
    stage: Stage, bare_nodes: list[Object], canary: None
) -> None:
    api, cluster = stage.cluster.api, stage.cluster
    if cluster.compares_other_devices:
        pytest.skip("with DRAConsumableCapacity the scheduler of 1.34.4 ends by an index out of range")
    api.patch("Namespace", stage.namespace, "", {"metadata": {"labels": ADMIN}})
    features = Features.from_gates(
        cluster.version, dict.fromkeys(gates_of(cluster.version), True) if cluster.gates else None
    )
    zones = sorted(set(NODES.values()))
    wrong: list[str] = []
    tally = {"allocated": 0, "refused": 0, "devices": 0, "in another order": 0}
    for first in range(0, COUNT, BATCH):
        seeds = range(first, min(first + BATCH, COUNT))
        apart = cluster.version >= "1.35"
        worlds = [
            random_world(seed, list(NODES), zones, features, stage.namespace, has_counter_slices=apart)
            for seed in seeds
        ]
        batch = Batch(stage, bare_nodes, worlds, features=features, tally=tally, number=first)
        try:
            wrong += batch.play()
        finally:
            batch.clean()
    print(f"\n{COUNT} worlds, {cluster}: {tally}, {len(wrong)} differ")
    assert not wrong, "\n".join(wrong)
    assert tally["allocated"] > COUNT / 2
    assert tally["refused"] > COUNT / 4


class Batch:
    """Some worlds at a time, with one round for the first pods of all worlds, another for the second, and so on."""

    def __init__(
        self,
        stage: Stage,
        nodes: list[Object],
        worlds: list[World],
        *,
        features: Features,
        tally: dict[str, int],
        number: int,
    ) -> None:
        self.stage, self.nodes, self.worlds = stage, nodes, worlds
        self.features, self.tally, self.number = features, tally, number
        self.api = stage.cluster.api
        self.slices: list[Object] = []
        self.classes: list[Object] = []

    def play(self) -> list[str]:
        """Create all pods in turn; return the differences as text."""
        for_all(self.api.create, [one for world in self.worlds for one in (*world.classes, *world.slices)])
        self._read_back()
        wrong = []
        for turn in range(max(len(world.pods) for world in self.worlds)):
            playing = [world for world in self.worlds if len(world.pods) > turn]
            before = self._claims()
            for_all(self.api.create, [one for world in playing for one in world.pods[turn]])
            self._caught_up(turn)
            for_all(self.api.create, [self._pod(world, turn) for world in playing])
            decided = self._decided({self._name(world, turn) for world in playing})
            after = self._claims()
            for world in playing:
                wrong += self._compare(world, turn, decided[self._name(world, turn)], before, after)
        return wrong

    def clean(self) -> None:
        """Delete the worlds; claims end when their pods are gone."""
        pods = [one["metadata"]["name"] for one in self.api.list("Pod", self.stage.namespace)]
        for_all(lambda name: self.api.delete("Pod", name, self.stage.namespace, grace=0), pods)
        self.api.call("DELETE", self.api.path("ResourceClaim", namespace=self.stage.namespace))
        until("the claims are gone", lambda: not self._claims(), 90)
        gone = [one for world in self.worlds for one in (*world.slices, *world.classes)]
        for_all(lambda one: self.api.delete(one["kind"], one["metadata"]["name"]), gone)

    def _read_back(self) -> None:
        self.slices = self.api.list("ResourceSlice")
        self.classes = self.api.list("DeviceClass")

    def _claims(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in self.api.list("ResourceClaim", self.stage.namespace)}

    def _name(self, world: World, turn: int) -> str:
        return f"{world.name}-{turn}"

    def _pod(self, world: World, turn: int) -> Object:
        return self._bare(self._name(world, turn), [one["metadata"]["name"] for one in world.pods[turn]])

    def _bare(self, name: str, claims: list[str]) -> Object:
        own = {f"claim-{index}": one for index, one in enumerate(claims)}
        selector, all_taints = {"bare": "yes"}, [{"operator": "Exists"}]
        return pod(
            self.stage.namespace, name, container("main"), claims=own, nodeSelector=selector, tolerations=all_taints
        )

    def _caught_up(self, turn: int) -> None:
        """Wait until the scheduler has read all slices, classes and claims; the canary's are created last."""
        if self.number == turn == 0:
            pool = {"name": CANARY, "generation": 1, "resourceSliceCount": 1}
            birds = [{"name": f"bird-{index}"} for index in range(100)]
            spec = {"driver": CANARY, "allNodes": True, "pool": pool, "devices": birds}
            rule = {"selectors": [{"cel": {"expression": f'device.driver == "{CANARY}"'}}]}
            group, meta = "resource.k8s.io/v1", {"name": CANARY}
            self.api.create({"apiVersion": group, "kind": "ResourceSlice", "metadata": meta, "spec": spec})
            self.api.create({"apiVersion": group, "kind": "DeviceClass", "metadata": meta, "spec": rule})
        name = f"canary-{self.number}-{turn}"
        asked = devices(request("bird", CANARY))
        self.api.create(claim(self.stage.namespace, name, asked))
        self.api.create(self._bare(name, [name]))
        self._decided({name})

    def _decided(self, names: set[str]) -> dict[str, Object]:
        """Wait until the scheduler has bound or refused each pod; return the pods."""

        def look() -> dict[str, Object] | None:
            found = {one["metadata"]["name"]: one for one in self.api.list("Pod", self.stage.namespace)}
            open_ones = [name for name in sorted(names) if not _condition(found[name])]
            assert not open_ones, f"not decided: {open_ones}"
            return found

        found = until("the scheduler has decided", look, 60, every=0.2)
        assert found is not None
        return found

    def _compare(
        self, world: World, turn: int, decided: Object, before: dict[str, Object], after: dict[str, Object]
    ) -> Iterable[str]:
        names = [one["metadata"]["name"] for one in world.pods[turn]]
        node = decided["spec"].get("nodeName")
        real = [after[name].get("status", {}).get("allocation") for name in names]
        got = (node, _comparable(real) if node else None)
        self.tally["allocated" if node else "refused"] += 1
        self.tally["devices"] += sum(len(one["devices"]["results"]) for one in real if one)
        ours: list[Any] = []
        for possible in self._outcomes(world, [after[name] for name in names], before):
            if got in possible:
                return
            if possible not in ours:
                ours.append(possible)
        manifest = {"slices": world.slices, "classes": world.classes, "pods": world.pods[: turn + 1]}
        yield (
            f"{world.name}, pod {turn}, Kubernetes {self.stage.cluster.version}: the scheduler says {got} "
            f"({_condition(decided)}); we say one of {ours}\n{yaml.safe_dump(json.loads(json.dumps(manifest)))}"
        )

    def _outcomes(self, world: World, claims: list[Object], before: dict[str, Object]) -> Iterator[list[Any]]:
        """Return the outcomes that our allocator allows, for each possible order of the slices and pools."""
        own = [one for one in self.slices if one["spec"]["driver"] == world.driver]
        asked = [{key: value for key, value in one.items() if key != "status"} for one in claims]
        held = [before[name] for name in world.claims if before.get(name, {}).get("status", {}).get("allocation")]
        for number, (pools, order) in enumerate(_orders(own)):
            allocator = Allocator(
                slices=_ranked(order, pools),
                classes=self.classes,
                allocated=_ranked(held, pools),
                kubernetes=self.stage.cluster.version,
                features=self.features,
            )
            if number and not allocator.rules.orders_vary:
                return
            self.tally["in another order"] += number == 1
            yield self._verdicts(allocator, asked)

    def _verdicts(self, allocator: Allocator, claims: list[Object]) -> list[Any]:
        """Return the nodes to which the pod may go, with the devices; (None, None) if it has to wait."""
        attempt = allocator.for_claims(claims)
        outcomes = {node["metadata"]["name"]: attempt.allocate(node) for node in self.nodes}
        fits = [(name, _comparable(outcome.results)) for name, outcome in outcomes.items() if outcome.ok]
        fatal = any(not outcome.category.is_node_local for outcome in outcomes.values())
        return fits if fits and not fatal else [(None, None)]


def for_all(act: Callable[[Any], object], items: Sequence[Any]) -> None:
    """Call a function for each item, several at a time."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(act, items))


def _orders(slices: list[Object]) -> Iterator[tuple[tuple[str, ...], list[Object]]]:
    """Yield each order that pools, and the slices of each pool, can have: in Kubernetes 1.35 Go's maps decide it."""
    members: dict[str, list[Object]] = {}
    for one in slices:
        members.setdefault(one["spec"]["pool"]["name"], []).append(one)
    within = itertools.product(*(itertools.permutations(part) for part in members.values()))
    for parts, pools in itertools.product(within, itertools.permutations(members)):
        yield pools, [one for part in parts for one in part]


def _ranked(contents: list[Object], pools: Sequence[str]) -> list[Object]:
    """Rename pools so that our allocator, which sorts them by name, takes them in the given order."""
    copies: list[Object] = json.loads(json.dumps(contents))
    for one in copies:
        if "pool" in one["spec"]:
            places = [(one["spec"]["pool"], "name")]
        else:
            places = [(result, "pool") for result in one["status"]["allocation"]["devices"]["results"]]
        for place, key in places:
            place[key] = f"{pools.index(place[key]):03}/{place[key]}"
    return copies


def _condition(found: Object) -> str:
    """Return what the scheduler decided about a pod; "" while it has not decided."""
    for one in found.get("status", {}).get("conditions", ()):
        if one["type"] == "PodScheduled":
            return f"{one['status']} {one.get('reason', '')} {one.get('message', '')}"
    return ""


def _comparable(allocations: Sequence[Any] | None) -> Any:
    """Normalize what either side may choose freely: rename share IDs in order, write quantities in canonical form."""
    names: dict[str, str] = {}
    return [_plain(one, names) for one in json.loads(json.dumps(allocations))]


def _plain(allocation: Any, names: dict[str, str]) -> Any:
    kept = {key: allocation[key] for key in ("devices", "nodeSelector") if allocation.get(key)}
    for one in kept["devices"].get("results", ()):
        one["pool"] = one["pool"].rpartition("/")[2]
        if "shareID" in one:
            one["shareID"] = names.setdefault(one["shareID"], f"share-{len(names) + 1}")
        for name, text in one.get("consumedCapacity", {}).items():
            one["consumedCapacity"][name] = str(Quantity.parse(text))
    return kept
