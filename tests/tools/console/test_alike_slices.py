"""The slices of a live cluster as the console's worker keeps them: nodes that are alike are judged once."""

import copy
import json

from dra_driver.allocation.capacity import Replica
from dra_driver.tools.console.board import Board
from dra_driver.tools.console.board_updates import PageRead, UpdateApplier
from dra_driver.tools.console.fleet_filter import selector_matches
from tests.support.slices import slices


def board_of(*items: list[dict]) -> Board:
    """Return the board after the pages of one list."""
    board, applier = Board.of_cluster("test"), UpdateApplier()
    for number, page in enumerate(items):
        content = json.dumps({"items": page}).encode()
        is_last = number == len(items) - 1
        applier.apply(board, PageRead("ResourceSlice", content, is_first=not number, is_last=is_last))
    return board


def plain(wire: dict) -> dict:
    return {**wire, "spec": {**wire["spec"], "devices": list(wire["spec"]["devices"])}}


def test_slices_that_are_alike_keep_their_own_devices() -> None:
    items = slices("t4=4", "l40s=4")
    found = board_of(items[:3], items[3:]).of("ResourceSlice")
    assert all(isinstance(wire["spec"]["devices"], Replica) for wire in found)
    assert len({id(wire["spec"]["devices"].shape) for wire in found}) == 2
    assert list(map(plain, found)) == items


def test_a_slice_with_a_difference_that_does_not_identify_a_device_has_a_shape_of_its_own() -> None:
    first, *others = slices("t4=9")
    changed = []
    for number, wire in enumerate(others):
        spec = copy.deepcopy(wire["spec"])
        device = spec["devices"][0]
        match number:
            case 0:
                device["name"] = "gpu-9"
            case 1:
                device["attributes"]["type"] = {"string": "other"}
            case 2:
                device["attributes"]["more"] = {"int": 1}
            case 3:
                device["attributes"]["more"] = {"bool": True}
            case 4:
                del device["attributes"]["uuid"]
            case 5:
                device["taints"] = [{"key": "a", "effect": "NoSchedule"}]
            case 6:
                spec["driver"] = "gpu.example.com"
            case 7:
                device["capacity"]["memory"] = {"value": "1Gi"}
        changed.append({**wire, "spec": spec})
    found = board_of([first, *changed]).of("ResourceSlice")
    assert len({id(wire["spec"]["devices"].shape) for wire in found}) == len(found)
    assert list(map(plain, found)) == [first, *changed]


def test_two_slices_of_one_node_are_both_kept() -> None:
    first, other = slices("t4=2")
    second = copy.deepcopy({**first, "metadata": {**first["metadata"], "name": "second"}})
    second["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "GPU-other"}
    found = board_of([first, second, other]).of("ResourceSlice")
    assert list(map(plain, found)) == [first, second, other]


def test_a_selector_is_judged_once_for_nodes_that_are_alike_in_a_live_cluster() -> None:
    board = board_of(slices("dgx-h100=600"))
    names = list(board.slices_by_node())
    assert len(selector_matches(board, 'device.driver == "gpu.nvidia.com"', names, seconds=-1).accepted) == 600
    apart = selector_matches(board, 'device.attributes["gpu.nvidia.com"].uuid.contains("7")', names, seconds=-1)
    assert "judged on the first 0 of 600 nodes" in apart.note
