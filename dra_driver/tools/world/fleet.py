"""The devices of a fleet, each with its driver and its node; fleets of simulated profiles and of this node's hardware.

In: profile names, a hardware port, or ResourceSlices. Out: a `Fleet`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.allocation.capacity import Replica, ReplicaShape
from dra_driver.base.errors import ApiError, InputError
from dra_driver.base.wire import DeviceWire, SliceWire, Wire
from dra_driver.hardware.port import Hardware
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import CLAIMS, CLASSES, SLICES, TEMPLATES, named, within
from dra_driver.node.claims.metadata import MAX_BYTES, DescribedClaim, read_metadata
from dra_driver.node.devices.rules import NOTHING_SHARED, SharingRules
from dra_driver.tools.world.access import ClusterAccess, NoProgress, ProgressLines

if TYPE_CHECKING:
    from dra_driver.tools.world.profiles import FleetOffer


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """One device as it is published, with its node, driver and pool."""

    node: str
    driver: str
    pool: str
    wire: DeviceWire

    @property
    def name(self) -> str:
        """The name of the device in its pool."""
        return str(self.wire.get("name") or "?")


@dataclass(frozen=True, slots=True)
class Repeat:
    """Further nodes with the same devices as a node of the fleet (`node`)."""

    node: str
    names: tuple[str, ...]
    shapes: tuple[ReplicaShape, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """All devices and their origin. `notes` are facts about the fleet for the user to read.

    `repeats` are nodes with the same devices as a node of the fleet; their devices are not in `devices`.
    """

    devices: tuple[FleetDevice, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    def __add__(self, other: Fleet) -> Fleet:
        if (self.repeats or other.repeats) and not set(self.nodes).isdisjoint(other.nodes):
            # One fleet adds devices to a node of the other, and the nodes that repeat this node do not have them.
            return self.unfolded() + other.unfolded()
        return Fleet(
            self.devices + other.devices,
            self.sources + other.sources,
            self.notes + other.notes,
            self.repeats + other.repeats,
        )

    @property
    def like(self) -> dict[str, tuple[str, ...]]:
        """The names of further nodes, by the node whose devices they repeat."""
        return {repeat.node: repeat.names for repeat in self.repeats}

    @property
    def size(self) -> int:
        """The number of devices, including those of repeated nodes."""
        return len(self.devices) + sum(
            len(repeat.names) * len(shape.wires) for repeat in self.repeats for shape in repeat.shapes
        )

    @property
    def node_count(self) -> int:
        """The number of nodes, including repeated ones."""
        return len(self.nodes) + sum(len(repeat.names) for repeat in self.repeats)

    def unfolded(self) -> Fleet:
        """Return the same fleet with the devices of every node in `devices`, and without repeats."""
        if not self.repeats:
            return self
        rows: dict[str, list[FleetDevice]] = {}
        for device in self.devices:
            rows.setdefault(device.node, []).append(device)
        for repeat in self.repeats:
            rows[repeat.node] += [replica for name in repeat.names for replica in _replicas(repeat.shapes, name)]
        devices = tuple(device for row in rows.values() for device in row)
        return Fleet(devices, self.sources, self.notes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that have devices here, in the order of their devices."""
        return tuple(dict.fromkeys(device.node for device in self.devices))

    @property
    def drivers(self) -> tuple[str, ...]:
        """All drivers, in the order of their devices."""
        return tuple(dict.fromkeys(device.driver for device in self.devices))

    def pairs(self) -> list[tuple[DeviceWire, str]]:
        """Return the devices with their drivers, in the form that engines expect."""
        return [(device.wire, device.driver) for device in self.devices]


def fleet_of_profiles(given: Iterable[str], fleet: Fleet, offer: FleetOffer | None = None) -> Fleet:
    """Return a fleet with simulated nodes added, given as NAME or NAME=COUNT, under names that no node has yet.

    Raises: InputError, UsageError.
    """
    from dra_driver.tools.world.profiles import read_count

    for name, count in map(read_count, given):
        taken = {*fleet.nodes, *(other for repeat in fleet.repeats for other in repeat.names)}
        fleet += fleet_of_profile(name, count, taken, offer)
    return fleet


def fleet_with_profiles(given: Sequence[str], fleet: Fleet, offer: FleetOffer) -> Fleet:
    """Return a fleet as `fleet_of_profiles` does, with a note on how its simulated nodes offer partitions.

    Raises: InputError, UsageError.
    """
    fleet = fleet_of_profiles(given, fleet, offer)
    if given and (offer.is_on_demand or holds_back_partitions(given, offer)):
        fleet += Fleet(notes=(f"simulated nodes: {offer.words}",))
    return fleet


def shipped_fleet(minor: int) -> Fleet:
    """Return a node of every shipped profile, and devices of all kinds that the drivers publish and no profile has."""
    from dra_driver.hardware.simulated.profile import profile_names
    from dra_driver.tools.world.profiles import FleetOffer

    offer = FleetOffer(is_on_demand=True, minor=minor)
    devices = [device for name in profile_names() for device in fleet_of_profile(name, offer=offer).devices]
    samples = resources.files("dra_driver.tools.world").joinpath("tables", "samples.json").read_text(encoding="utf-8")
    slices = [(wire["metadata"]["name"], wire) for wire in json.loads(samples)["items"]]
    devices += fleet_of_slices(slices, "").devices
    return Fleet(tuple(devices), ("every shipped profile and kind of device",))


def holds_back_partitions(given: Iterable[str], offer: FleetOffer) -> bool:
    """Return whether only a default of the version keeps these simulated nodes from offering partitions on demand."""
    from dra_driver.tools.world.profiles import read_count

    on_demand = replace(offer, is_on_demand=True)
    names = {read_count(text)[0] for text in given} if offer.is_by_default else ()
    return any(
        fleet_of_profile(name, offer=on_demand).size > fleet_of_profile(name, offer=offer).size for name in names
    )


def fleet_of_profile(
    name_or_path: str, count: int = 1, taken: Collection[str] = (), offer: FleetOffer | None = None
) -> Fleet:
    """Return what nodes of a profile would publish, including other drivers' devices; further nodes are repeats.

    No node gets a name that is in `taken`. Without an offer, only the partitions that exist on the hardware are
    published. Raises: InputError.
    """
    from dra_driver.tools.world.profiles import EXISTING_PARTITIONS, ProfileNodes

    simulated = ProfileNodes(name_or_path, offer or EXISTING_PARTITIONS)
    first, *further = simulated.free_names(max(count, 1), taken)
    devices = tuple(_replicas(simulated.shapes, first)) if count else ()
    repeats = (Repeat(first, tuple(further), simulated.shapes),) if further and devices else ()
    times = f"{count:,} of " if count > 1 else ""
    return Fleet(devices, (f"{times}profile {name_or_path}",), simulated.notes, repeats)


def _replicas(shapes: Iterable[ReplicaShape], node: str) -> Iterator[FleetDevice]:
    for shape in shapes:
        for wire in shape.on(node):
            yield FleetDevice(node, shape.driver, node, wire)


def fleet_of_hardware(
    hardware: Hardware, node: str, driver: str, source: str, sharing: SharingRules = NOTHING_SHARED
) -> Fleet:
    """Return what a node with this hardware would publish. Raises: HardwareError, NodeError."""
    from dra_driver.node.devices.build import build_inventory
    from dra_driver.node.devices.describing import device_wire

    try:
        inventory = build_inventory(hardware.discover(), sharing=sharing)
    finally:
        hardware.close()
    devices = tuple(FleetDevice(node, driver, node, device_wire(device)) for device in inventory.devices)
    notes = tuple(f"{node}: {problem.subject}: {problem.message}" for problem in inventory.problems)
    if inventory.waiting_for:
        notes = (*notes, f"{node}: nothing is published: waiting for {inventory.waiting_for}")
    return Fleet(devices, (source,), notes)


# The fleet of ResourceSlices, from files or a cluster.

ALL_NODES = "(all nodes)"
SOME_NODES = "(by node selector)"


def fleet_of_slices(slices: Sequence[tuple[str, SliceWire]], source: str) -> Fleet:
    """Return the devices of slices; each slice comes with its origin. Raises: InputError for an invalid slice."""
    specs = [(origin, _mapping(wire.get("spec"), origin, "spec")) for origin, wire in slices]
    newest: dict[tuple[str, str], int] = {}
    for origin, spec in specs:
        key, generation = _pool(spec, origin)
        newest[key] = max(generation, newest.get(key, generation))
    current = [
        (origin, spec, key)
        for origin, spec in specs
        for key, generation in [_pool(spec, origin)]
        if generation == newest[key]
    ]
    folded = _repeats([spec for _, spec, _ in current])
    left_out = {name for repeat in folded for name in repeat.names}
    devices: list[FleetDevice] = []
    for origin, spec, key in current:
        if not (isinstance(spec.get("devices"), Replica) and spec["nodeName"] in left_out):
            devices.extend(_slice_devices(spec, key, origin))
    outdated = len(specs) - len(current)
    notes = (f"{outdated} ResourceSlices of an older pool generation were left out",) if outdated else ()
    return Fleet(tuple(devices), (source,), notes, folded)


def _repeats(specs: Sequence[dict[str, Any]]) -> tuple[Repeat, ...]:
    """Return which nodes repeat others: all their slices are replicas, and their pools have the nodes' names.

    If there are only a few nodes, none is treated as a repeat, so that they are shown in the order of the file.
    """
    from dra_driver.allocation.funnel import FEW_NODES

    shapes: dict[str, list[ReplicaShape] | None] = {}
    for spec in specs:
        node, devices = spec.get("nodeName"), spec.get("devices")
        pool = spec.get("pool")
        if not isinstance(node, str):
            continue
        known = shapes.setdefault(node, [])
        if isinstance(devices, Replica) and isinstance(pool, dict) and pool.get("name") == node and known is not None:
            known.append(devices.shape)
        else:
            shapes[node] = None
    nodes: dict[tuple[int, ...], list[str]] = {}
    if len(shapes) <= FEW_NODES:
        return ()
    for node, known in shapes.items():
        if known:
            nodes.setdefault(tuple(map(id, known)), []).append(node)
    return tuple(
        Repeat(first, tuple(further), tuple(shapes[first] or ())) for first, *further in nodes.values() if further
    )


def _slice_devices(spec: dict[str, Any], key: tuple[str, str], origin: str) -> Iterable[FleetDevice]:
    driver, pool = key
    node = spec.get("nodeName")
    if not isinstance(node, str) or not node:
        node = ALL_NODES if spec.get("allNodes") else SOME_NODES if spec.get("nodeSelector") else pool
    listed = spec.get("devices") or []
    if not isinstance(listed, (list, Replica)):
        raise InputError("slice", f"{origin}: spec.devices is not a list")
    for number, entry in enumerate(listed):
        at = f"{origin}: spec.devices[{number}]"
        device = _mapping(entry, at, "")
        basic = device.get("basic")
        if isinstance(basic, dict):  # the form of resource.k8s.io/v1beta1
            device = {**{name: value for name, value in device.items() if name != "basic"}, **basic}
        for field in ("attributes", "capacity"):
            _mapping(device.get(field) or {}, at, field)
        own = device.get("nodeName")
        yield FleetDevice(own if isinstance(own, str) and own else node, driver, pool, device)


def _pool(spec: dict[str, Any], origin: str) -> tuple[tuple[str, str], int]:
    driver = spec.get("driver")
    if not isinstance(driver, str) or not driver:
        raise InputError("slice", f"{origin}: spec.driver is missing")
    pool = spec.get("pool")
    held = pool if isinstance(pool, dict) else {}
    generation = held.get("generation")
    name = held.get("name")
    named = name if isinstance(name, str) else str(spec.get("nodeName") or "?")
    return (driver, named), generation if isinstance(generation, int) else 0


def _mapping(value: Any, origin: str, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("slice", f"{origin}: {field + ' ' if field else ''}is not a mapping")
    return value


# Device files: what the files of this node contain about the devices of claims (docs/metadata.md).

FOLDERS = "*-metadata"
_MAX_FILES = 4096
DeviceKey = tuple[str, str, str, str]
"""The request of a claim, and the driver, pool and name of a device."""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """The content about one device: the path in containers, how often it changed, and attributes as text."""

    path: str
    generation: int
    attributes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes)
        return f"generation {self.generation}: {attributes}"


class DeviceFiles:
    """The files about devices in one CDI folder."""

    def __init__(self, cdi_folder: Path) -> None:
        self._folder = cdi_folder
        self._files: dict[str, list[Path]] = {}
        for file in self._found():
            self._files.setdefault(file.name.rpartition("_")[0], []).append(file)

    def of_claim(self, uid: str) -> tuple[dict[DeviceKey, DeviceFile], list[str]]:
        """Return the content about each device of a claim, and what is wrong with files that can't be used."""
        found: dict[DeviceKey, DeviceFile] = {}
        faults = []
        for file in self._files.get(uid, ()):
            try:
                claim = _read(file, uid)
            except (OSError, InputError) as error:
                why = error.message if isinstance(error, InputError) else error.strerror
                faults.append(f"{file.name} can't be used: {why}")
                continue
            for device in claim.devices:
                key = (device.request, device.driver, device.pool, device.name)
                found[key] = DeviceFile(claim.path_of(device), claim.generation, device.attributes)
        return found, faults

    def _found(self) -> Iterator[Path]:
        """Yield at most `_MAX_FILES` files, in the order of their names."""
        count = 0
        for folder in sorted(self._folder.glob(FOLDERS)):
            try:
                names = [] if folder.is_symlink() else sorted(os.listdir(folder))  # noqa: PTH208
            except OSError:
                continue
            for name in names:
                if name.endswith(".json") and count < _MAX_FILES:
                    count += 1
                    yield folder / name


def _read(file: Path, uid: str) -> DescribedClaim:
    """Read the file of one request of a claim. Raises: OSError, InputError."""
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise InputError("metadata", "it is not a regular file")
        claim = read_metadata(opened.read(MAX_BYTES + 1))
    if claim.uid != uid:
        raise InputError("metadata", f"it is about another claim, {claim.uid}")
    return claim


# A live cluster as an input: its slices, classes and claims, read with the user's kubeconfig or a ServiceAccount.

_SECONDS = 30.0


class Cluster:
    """A connection to one API server."""

    def __init__(self, access: ClusterAccess, lines: ProgressLines = NoProgress) -> None:
        """Load the credentials. `lines` shows the progress of long lists. Raises: InputError, NodeError."""
        self.name = access.kubeconfig or "in-cluster"
        self.access = access
        self._api = access.connect()
        self._lines = lines

    def fleet(self) -> Fleet:
        """Read all ResourceSlices. Raises: ApiError, InputError."""
        slices = [(f"ResourceSlice {wire['metadata']['name']}", wire) for wire in self._list(SLICES)]
        return fleet_of_slices(slices, f"cluster ({self.name})")

    def slices(self) -> list[Wire]:
        """Read all ResourceSlices as wire objects. Raises: ApiError."""
        return self._list(SLICES)

    def classes(self) -> list[Wire]:
        """Read all DeviceClasses. Raises: ApiError."""
        return [{"kind": "DeviceClass", **wire} for wire in self._list(CLASSES)]

    def claims(self) -> list[Wire]:
        """Read the ResourceClaims of the access; what may not be read is added to `access.unseen`. Raises: ApiError."""
        return self._read("ResourceClaim", CLAIMS)

    def templates(self) -> list[Wire]:
        """Read the ResourceClaimTemplates of the access, as `claims` does. Raises: ApiError."""
        return self._read("ResourceClaimTemplate", TEMPLATES)

    def _read(self, kind: str, path: str) -> list[Wire]:
        """Read the objects of a kind: in one namespace if the access names one, otherwise in all namespaces."""
        return self.access.read(self._api, kind, path, self._lines, at_home=bool(self.access.namespace))

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object of the kind whose objects are listed at a path; None if there is none. Raises: ApiError."""
        path = named(within(kind, namespace), name)
        try:
            return self._api.request("GET", path, timeout_s=_SECONDS)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def kubernetes(self) -> str:
        """Return the server's Kubernetes version, such as "1.35". Raises: ApiError."""
        version = self._api.server_version()
        return f"{version.major}.{version.minor}"

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _list(self, path: str) -> list[Wire]:
        """List all objects, page by page."""
        from dra_driver.tools.world.access import read_list

        return read_list(self._api, path, f"{path.rpartition('/')[2]} read", self._lines)
