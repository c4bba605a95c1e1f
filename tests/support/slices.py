"""Slices of many nodes of one kind."""

import copy

from dra_driver.tools.world.world import World, add_profiles

SELECTOR = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'


def slices(*profiles: str) -> list[dict]:
    world = World()
    add_profiles(world, profiles)
    made = [
        {**one, "spec": {**one["spec"], "devices": list(one["spec"]["devices"])}} for one in world.of("ResourceSlice")
    ]
    for number, one in enumerate(made):
        stamps = {"uid": f"u-{number}", "resourceVersion": str(number), "managedFields": [{"time": f"{number}"}]}
        one["metadata"] = {**one["metadata"], **stamps}
    return copy.deepcopy(made)
