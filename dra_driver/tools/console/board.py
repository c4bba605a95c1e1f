"""The board: the objects that the console shows, as they are now.

In: pages of lists, changes and deletions, as watches report them, or a whole world. Out: a `World` for the questions
that commands answer too, and the slices and holders of each node. Only one thread may use a board.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.pools import DeviceId, PoolId
from dra_driver.base.errors import InputError
from dra_driver.base.names import gpu_of_device
from dra_driver.base.wire import Wire
from dra_driver.tools.fleet.branches import Holding, holdings
from dra_driver.tools.fleet.summary import class_rows, namespace_rows, slice_tree
from dra_driver.tools.fleet.template import Branch
from dra_driver.tools.world.access import DocumentKind, OutputDocument, UnseenObjects, plain, unseen_document
from dra_driver.tools.world.fleet import Fleet, FleetDevice, fleet_of_slices
from dra_driver.tools.world.profiles import read_count
from dra_driver.tools.world.world import DEFAULT_VERSION, PATHS, AppliedRules, World, apply_rules, bare_node

SEVERAL_NODES = "(several nodes)"
_DIGITS = re.compile(r"([0-9]+)")
Key = tuple[str, str]  # namespace and name


@dataclass(slots=True)
class Board:
    """Objects by kind and name. `version` grows with every change.

    `is_live` is True if the objects come from a cluster. `world` holds everything else that is known: the version of
    Kubernetes, the objects that may not be read, and notes on simulated nodes. `left_out` is how many objects of each
    kind do not have its shape, so that they are not on the board.
    """

    world: World
    rules: AppliedRules
    source: str = ""
    is_live: bool = False
    left_out: dict[str, int] = field(default_factory=dict)
    version: int = 0
    loaded: set[str] = field(default_factory=set)
    _objects: dict[str, dict[Key, Wire]] = field(default_factory=lambda: {kind: {} for kind in PATHS})
    _listed: dict[tuple[str, str], dict[Key, Wire]] = field(default_factory=dict)
    _fleet: Fleet | None = None
    _by_node: dict[str, list[Wire]] | None = None
    _held: dict[PoolId, dict[DeviceId, list[Holding]]] | None = None

    @classmethod
    def of_world(cls, world: World, rules: AppliedRules, source: str) -> Board:
        """Return the board of a world that was read as a whole."""
        board = cls(world, rules, source)
        for kind in PATHS:
            board._objects[kind] = {_key(one): one for one in world.of(kind)}
            board.loaded.add(kind)
        return board

    def page(self, kind: str, objects: Iterable[Wire], *, is_first: bool, is_last: bool, namespace: str = "") -> None:
        """Add a page of a list.

        The pages of the first list of a kind are shown at once; a later list replaces the earlier one with its last
        page. With a namespace, the list is of that namespace only, and the objects of other namespaces stay.
        """
        place = kind, namespace
        if is_first:
            self._listed[place] = {}
        listed = self._listed.setdefault(place, {})
        listed.update((_key(one), one) for one in objects)
        known = self._objects[kind]
        if is_last:
            others = {key: one for key, one in known.items() if namespace and key[0] != namespace}
            self._objects[kind] = {**others, **self._listed.pop(place)} if others else self._listed.pop(place)
            self.loaded.add(kind)
            if kind == "ResourceSlice":
                self._apply_rules()
        elif kind not in self.loaded:
            self._objects[kind] = {**known, **listed} if is_first or namespace else listed
        self._forget(kind)

    def change(self, kind: str, wire: Wire) -> None:
        """Add or replace an object."""
        key = _key(wire)
        if self._objects[kind].get(key) != wire:
            self._objects[kind][key] = wire
            self._forget(kind)

    def delete(self, kind: str, wire: Wire) -> None:
        """Forget an object that is gone."""
        self._objects[kind].pop(_key(wire), None)
        self._forget(kind)

    @classmethod
    def of_cluster(cls, source: str) -> Board:
        """Return the board of a cluster of which nothing is known yet."""
        world = World(kubernetes=DEFAULT_VERSION)
        return cls(world, apply_rules(world, None, {}), source, is_live=True)

    def mark_unreadable(self, unseen: UnseenObjects) -> None:
        """Record that objects of a kind may not be read. It replaces what was recorded of this kind before."""
        others = [one for one in self.world.unseen if one.kind != unseen.kind]
        self.world.unseen = [*others, unseen]
        if not unseen.is_partial:
            self.loaded.add(unseen.kind)  # nothing of this kind will come, so pages need not wait for it
        self.version += 1

    def mark_left_out(self, kind: str, count: int) -> None:
        """Record how many objects of a kind are not on the board, because they do not have the shape of the kind."""
        if count != self.left_out.get(kind, 0):
            self.left_out[kind] = count
            self.version += 1

    def set_version(self, kubernetes: str) -> None:
        """Set the version of the cluster. Its gates are derived from the fields of its slices."""
        self.world.kubernetes = kubernetes
        self._apply_rules()
        self.version += 1

    def _apply_rules(self) -> None:
        self.rules = apply_rules(self.snapshot(), None, {})

    def of(self, kind: str) -> list[Wire]:
        """Return all objects of a kind."""
        return list(self._objects[kind].values())

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object; None if there is none."""
        return self._objects[kind].get((namespace, name))

    def count(self, kind: str) -> int:
        """Return how many objects of a kind there are."""
        return len(self._objects[kind])

    def snapshot(self) -> World:
        """Return a world with the objects as they are now. The caller may add objects to it."""
        known, world = self.world, World(kubernetes=self.world.kubernetes)
        world.objects = {kind: self.of(kind) for kind in PATHS}
        world.offer, world.kept, world.unseen = known.offer, known.kept, list(known.unseen)
        world.profile_notes, world.serves_resources = list(known.profile_notes), known.serves_resources
        world.serves_implicit_names = known.serves_implicit_names
        if self.is_live:
            names = {one["metadata"]["name"] for one in world.objects["Node"]}
            world.objects["Node"] += [bare_node(n) for n in self.slices_by_node() if n not in {*names, SEVERAL_NODES}]
        return world

    def fleet(self) -> Fleet:
        """Return all devices, for selectors. Raises: InputError for an invalid slice."""
        if self._fleet is None:
            slices = [(f"ResourceSlice {key[1]}", one) for key, one in self._objects["ResourceSlice"].items()]
            self._fleet = fleet_of_slices(slices, self.source)
        return self._fleet

    def published_device(self, node: str, device: DeviceId) -> FleetDevice:
        """Return a device of a node. Raises: InputError if there is none."""
        driver, pool, name = device
        for one in self.slices_by_node().get(node, ()):
            if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (driver, pool):
                for wire in one["spec"].get("devices") or ():
                    if wire["name"] == name:
                        return FleetDevice(node, driver, pool, wire)
        raise InputError("no-device", f"node {node} publishes no device {name}")

    def slices_by_node(self) -> dict[str, list[Wire]]:
        """Return the slices of each node, in the order of the nodes' names; those of several nodes share one entry."""
        if self._by_node is None:
            found: dict[str, list[Wire]] = {}
            for one in self._objects["ResourceSlice"].values():
                found.setdefault(one["spec"].get("nodeName") or SEVERAL_NODES, []).append(one)
            self._by_node = {name: found[name] for name in sorted(found, key=natural)}
        return self._by_node

    def held(self) -> dict[PoolId, dict[DeviceId, list[Holding]]]:
        """Return which claims hold each device, pool by pool."""
        if self._held is None:
            self._held = {}
            for device, found in holdings(self.of("ResourceClaim")).items():
                self._held.setdefault(device[:2], {})[device] = found
        return self._held

    def _forget(self, kind: str) -> None:
        self.version += 1
        if kind == "ResourceSlice":
            self._fleet = self._by_node = None
        if kind == "ResourceClaim":
            self._held = None


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key for sorting, by which node-2 comes before node-10.

    >>> sorted(["n10", "n2"], key=natural)
    ['n2', 'n10']
    """
    return tuple(_size_and_digits(part) if part.isdigit() else (-1, part) for part in _DIGITS.split(name))


def _size_and_digits(digits: str) -> tuple[int, str]:
    """Return a key that sorts numbers by their value, however long they are: `int` refuses thousands of digits."""
    significant = digits.lstrip("0")
    return len(significant), significant


def _key(wire: Wire) -> Key:
    metadata = wire["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


# Reduce objects to the fields that pages show.

_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp", "ownerReferences")
_POD_SPEC = (
    "nodeName",
    "schedulerName",
    "resourceClaims",
    "schedulingGates",
    "nodeSelector",
    "affinity",
    "tolerations",
)
_POD_STATUS = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName")
_NODE_SPEC = ("unschedulable", "taints")
_HEALTH = "allocatedResourcesStatus"
_STATES = ("waiting", "running", "terminated")


def trimmed(kind: str, given: Any) -> Wire:
    """Return an object of a kind with only the fields that are kept."""
    wire = _mapping(given)
    found = {name: value for name, value in wire.items() if name in {"apiVersion", "kind", "spec", "status"}}
    found["metadata"] = _some(_mapping(wire.get("metadata")), _METADATA)
    spec, status = _mapping(wire.get("spec")), _mapping(wire.get("status"))
    if kind == "Pod":
        found["spec"] = _some(spec, _POD_SPEC)
        for group in ("containers", "initContainers"):
            if group in spec:
                found["spec"][group] = [_some(one, ("name", "resources")) for one in _mappings(spec[group])]
        found["status"] = _some(status, _POD_STATUS) | _containers(status)
    if kind == "Node":
        found["spec"] = _some(spec, _NODE_SPEC)
        found["status"] = _some(status, ("allocatable",))
        ready = [one for one in _mappings(status.get("conditions")) if one.get("type") == "Ready"]
        found["status"]["conditions"] = [_some(one, ("type", "status")) for one in ready]
    return found


def _containers(status: Mapping[str, Any]) -> Wire:
    """Return the state of containers, and the health that the kubelet reports for their devices."""
    found: Wire = {}
    for group in ("containerStatuses", "initContainerStatuses"):
        for one in _mappings(status.get(group)):
            states = {kind: _mapping(state) for kind, state in _mapping(one.get("state")).items() if kind in _STATES}
            kept = {kind: _some(state, ("reason", "message", "exitCode")) for kind, state in states.items()}
            found.setdefault(group, []).append({**_some(one, ("name", _HEALTH)), "state": kept})
    return found


def _some(wire: Mapping[str, Any], names: Iterable[str]) -> Wire:
    return {name: wire[name] for name in names if name in wire}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# Copies of pods and claims on a board, to simulate that the same arrives once more.

_KINDS = {"pod": "Pod", "claim": "ResourceClaim"}
_MAX = 1_000  # copies in one simulation


def copies(board: Board, places: Sequence[str]) -> Iterator[tuple[str, Wire]]:
    """Yield each copy with its kind. Raises: InputError for a place without an object, or too many copies."""
    left = _MAX
    for given in places:
        place, count = read_count(given)
        left -= count
        if left < 0:
            raise InputError("too-large", f"at most {_MAX:,} copies can be simulated")
        kind, namespace, name = _parts(place)
        found = board.find(_KINDS[kind], namespace, name)
        if found is None:
            raise InputError("missing", f"there is no {kind} {namespace}/{name}")
        for number in range(1, count + 1):
            ending = f"-copy-{number}"
            if kind == "pod":
                yield from _claims_of(board, found, ending)
            yield _KINDS[kind], _copy(found, ending)


def _parts(place: str) -> tuple[str, str, str]:
    parts = place.split("/")
    if len(parts) != 3 or parts[0] not in _KINDS:
        raise InputError("question", f"{place[:80]!r} is not pod/NAMESPACE/NAME or claim/NAMESPACE/NAME")
    return parts[0], parts[1], parts[2]


def _claims_of(board: Board, pod: Wire, ending: str) -> Iterator[tuple[str, Wire]]:
    """Yield copies of the claims that a pod names."""
    namespace = pod["metadata"].get("namespace") or "default"
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        claim = board.find("ResourceClaim", namespace, entry.get("resourceClaimName") or "")
        if claim is not None:
            yield "ResourceClaim", _copy(claim, ending)


def _copy(wire: Wire, ending: str) -> Wire:
    """Return a copy of an object without its status and node, and with a new name; a pod refers to copied claims."""
    metadata = {key: value for key, value in wire["metadata"].items() if key in {"namespace", "labels"}}
    spec = copy.deepcopy({key: value for key, value in (wire.get("spec") or {}).items() if key != "nodeName"})
    for entry in spec.get("resourceClaims") or ():
        if entry.get("resourceClaimName"):
            entry["resourceClaimName"] += ending
    made = {**metadata, "name": wire["metadata"]["name"] + ending}
    return {**{key: wire[key] for key in ("apiVersion", "kind") if key in wire}, "metadata": made, "spec": spec}


# What deserves attention in a fleet, and how many devices each namespace and class holds.

_MAX_ATTENTION = 500
_MAX_HOLDERS = 200


def attention(board: Board) -> OutputDocument:
    """Return the document of all flags. Codes with few flags come first, because they are easily overlooked."""
    claims = board.of("ResourceClaim")
    slices = None if board.world.is_unseen("ResourceSlice") else board.of("ResourceSlice")
    branches = slice_tree(slices, claims, None if board.is_live else board.of("Pod") or None)
    flags = list(_flags(branches))
    counts = Counter(code for code, _ in {(one["code"], _gpu_of(one["place"])) for one in flags})
    content = {
        "version": board.version,
        "counts": dict(counts.most_common()),
        "flags": sorted(flags, key=lambda one: (counts[one["code"]], one["code"], one["place"]))[:_MAX_ATTENTION],
        "namespaces": plain(namespace_rows(claims)[:_MAX_HOLDERS]),
        "classes": plain(class_rows(claims)[:_MAX_HOLDERS]),
        "unseen": unseen_document(board.world.unseen),
    }
    return OutputDocument(DocumentKind.ATTENTION, content)


def _gpu_of(place: str) -> tuple[str, ...]:
    """Return the place of the GPU of a flagged device: a fault of a GPU counts once, not for each of its parts."""
    node, *others = place.split(" / ")
    return node, *others[:1], *(gpu_of_device(one) for one in others[-1:])


def _flags(branches: Iterable[Branch], place: tuple[str, ...] = ()) -> Iterator[Wire]:
    for one in branches:
        here = (*place, one.name)
        for flag in one.flags:
            found = {"code": flag.code, "message": flag.message, "kind": one.kind, "place": " / ".join(here)}
            yield {**found, "nodes": 1 + (len(one.like) if one.kind == "node" else 0)}
        yield from _flags(one.children, here)
