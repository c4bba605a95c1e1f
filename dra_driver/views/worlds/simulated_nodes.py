"""Add simulated nodes to a world.

In: names of profiles, each with a count. Out: their nodes and slices in the world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dra_driver.allocation.pools.replicas import Replica
from dra_driver.model.wire import Wire
from dra_driver.views.fleet.profile_nodes import ProfileNodes, SliceShape, read_count
from dra_driver.views.worlds.world import World, bare_node


def add_profiles(world: World, profiles: Sequence[str]) -> None:
    """Add simulated nodes, given as NAME or NAME=COUNT. Raises: InputError, UsageError."""
    taken = {node["metadata"]["name"] for node in world.objects["Node"]}
    for given in profiles:
        profile, count = read_count(given)
        simulated = ProfileNodes(profile, world.offer)
        world.profile_notes += [note for note in simulated.notes if note not in world.profile_notes]
        counts = Counter(one.driver for one in simulated.slices)
        for node in simulated.free_names(count, taken):
            taken.add(node)
            world.objects["Node"].append(bare_node(node))
            for place, one in enumerate(simulated.slices):
                devices: Sequence[Wire] = ()
                if one.shape is not None:
                    devices = Replica(one.shape, node) if count > 1 else list(one.shape.on(node))
                name = f"{node}-{one.driver}-{place}" if counts[one.driver] > 1 else f"{node}-{one.driver}"
                made = _slice(name, node, one, devices, counts[one.driver])
                world.objects["ResourceSlice"].append(made)


def _slice(name: str, node: str, one: SliceShape, devices: Sequence[Wire], count: int) -> Wire:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    spec: Wire = {"driver": one.driver, "nodeName": node, "pool": pool}
    if devices:
        spec["devices"] = devices
    if one.counter_sets:
        spec["sharedCounters"] = list(one.counter_sets)
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
