"""The fleet of ResourceSlices, from files or a cluster.

In: slices as wire objects. Out: a `Fleet` of their devices. Slices that the scheduler would ignore (older generations
of a pool) are left out and counted.

Source: Kubernetes API resource/v1 ResourceSliceSpec, Device; v1beta1 devices keep their content under `basic`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dra_driver.allocation.pools.replicas import Replica, ReplicaShape
from dra_driver.model.errors import InputError
from dra_driver.model.wire import SliceWire
from dra_driver.views.fleet.devices import Fleet, FleetDevice, Repeat

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
    from dra_driver.allocation.explaining.node_kinds import FEW_NODES

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
