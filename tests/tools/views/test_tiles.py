"""Tiles: a node's GPUs and their parts, to scale."""

from __future__ import annotations

from dra_driver.tools.console.board import Board
from dra_driver.tools.console.fleet_page import tiles_of
from dra_driver.tools.world.world import World, add_profiles, apply_rules

NODE, GPU = "dgx-h100-1", "gpu-0000-1b-00-0"


def tiles(held=(), taints=(), drop=0, kubernetes="1.36"):
    world = World()
    rules = apply_rules(world, kubernetes, {})
    add_profiles(world, ["dgx-h100"])
    slices = world.of("ResourceSlice")
    for one in slices:
        for device in one["spec"].get("devices") or ():
            if device["name"] in taints:
                device["taints"] = [{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}]
    del slices[: drop or 0]
    for name in held:
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": name}
        status = {"allocation": {"devices": {"results": [result]}}}
        world.objects["ResourceClaim"].append(
            {"metadata": {"name": f"of-{name[-4:]}", "namespace": "x"}, "spec": {}, "status": status}
        )
    board = Board.of_world(world, rules, "test")
    return {one.name: one for one in tiles_of(board.slices_by_node()[NODE], board.held())}


def parts(tile):
    return [(part.state, part.start, part.size) for part in tile.parts]


def test_a_gpu_that_can_be_partitioned_is_free_as_a_whole():
    assert parts(tiles()[GPU]) == [("free", 0.0, 1.0)]


def test_a_held_partition_is_shown_at_its_place_and_the_rest_of_the_gpu_is_free():
    assert parts(tiles(held=[f"{GPU}-mig-1g10gb-19-2"])[GPU]) == [
        ("free", 0.0, 0.25),
        ("held", 0.25, 0.125),
        ("free", 0.375, 0.625),
    ]


def test_a_gpu_that_is_held_as_a_whole_has_one_part():
    assert parts(tiles(held=[GPU])[GPU]) == [("held", 0.0, 1.0)]


def test_memory_that_no_partition_can_use_any_more_is_withheld():
    found = tiles(held=[f"{GPU}-mig-4g40gb-5-0", f"{GPU}-mig-3g40gb-9-4"])[GPU]
    assert {part.state for part in found.parts} == {"held"}
    found = tiles(held=[f"{GPU}-mig-1g10gb-19-{place}" for place in range(7)])[GPU]
    assert parts(found)[-1] == ("withheld", 0.875, 0.125)


def test_a_held_gpu_with_a_taint_is_shown_as_tainted():
    assert parts(tiles(held=[GPU], taints=[GPU])[GPU]) == [("tainted", 0.0, 1.0)]


def test_free_devices_of_an_incomplete_pool_are_withheld():
    assert {one.state for one in tiles(drop=1).values()} == {"withheld"}


def test_a_device_that_is_held_but_not_published_is_shown():
    [gone] = [one for one in tiles(held=["gpu-gone"]).values() if one.name == "gpu-gone"]
    assert (gone.state, gone.parts[0].holders) == ("withheld", ("x/of-gone",))
