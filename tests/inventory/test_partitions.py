"""GPUs that may be cut: what they are offered as, and that what can be handed out together never overlaps."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.geometry import cuts_for
from dra_driver.inventory.partitions import MigPolicy, Ownership, counters_of_gpu, cuts_of
from dra_driver.inventory.wire import counter_set_wire, device_wire

SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[3] / "shared"))
DYNAMIC = MigPolicy(is_dynamic=True)
FACTS = SimulatedHardware("dgx-h100", Roots(), node_name="n").discover()
GPU = FACTS.gpus[0]
INVENTORY = build_inventory(FACTS, DYNAMIC)
OF_GPU = [d for d in INVENTORY.devices if d.gpu.pci_address == GPU.pci_address]


def test_eight_h100_are_8_whole_gpus_and_200_partitions():
    assert len(INVENTORY.devices) == 208
    assert sum(d.cut is None for d in INVENTORY.devices) == 8
    assert len(INVENTORY.counter_sets) == 8
    assert [d.name for d in INVENTORY.plain] == [d.name for d in INVENTORY.devices if d.cut is None]
    assert INVENTORY.problems == ()


def test_capacities_counters_and_placements_are_those_that_nvidias_driver_publishes():
    path = SHARED / "peers/nvidia-published.json"
    if not path.exists():
        pytest.skip("recorded slices not found: set DRA_SHARED")
    slices = json.loads(path.read_text())["main_dynmig_h100"]
    (shared,) = (c for s in slices for c in s.get("sharedCounters", ()))
    assert counter_set_wire("x", counters_of_gpu(cuts_of(GPU)))["counters"] == shared["counters"]
    theirs = {d["name"].removeprefix("gpu-0"): d for s in slices for d in s.get("devices", ())}
    prefix = "gpu-" + GPU.pci_address.replace(":", "-").replace(".", "-")
    ours = {d.name.removeprefix(prefix): device_wire(d) for d in OF_GPU}
    assert ours.keys() == theirs.keys()
    for name, device in theirs.items():
        assert ours[name]["capacity"] == device["capacity"]
        assert ours[name]["consumesCounters"][0]["counters"] == device["consumesCounters"][0]["counters"]
        unknown = {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}  # not in this profile
        assert device["attributes"].keys() - ours[name]["attributes"].keys() <= unknown


def slices_of(device) -> set[str]:
    return {name for name in device.counters if name.startswith("memory-slice-")}


@settings(deadline=None)
@given(st.permutations(OF_GPU))
def test_what_the_counters_let_through_together_overlaps_nowhere(order):
    left = dict(INVENTORY.counter_sets[OF_GPU[0].counter_set])
    taken: list = []
    for device in order:
        if all(left[name] >= amount for name, amount in device.counters.items()):
            left = {name: left[name] - device.counters.get(name, 0) for name in left}
            taken.append(device)
    every = [name for device in taken for name in slices_of(device)]
    assert len(every) == len(set(every))
    assert taken


def test_a_cut_consumes_the_slices_of_its_placement_and_the_whole_gpu_all():
    for device in OF_GPU:
        if device.cut is not None:
            assert slices_of(device) == {f"memory-slice-{i}" for i in device.cut.slices}
        else:
            assert slices_of(device) == {f"memory-slice-{i}" for i in range(8)}


@settings(deadline=None)
@given(st.sampled_from(["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]), st.integers(1, 8))
def test_a_geometry_never_overlaps(name, count):
    cuts = cuts_for(GPU, f"{name}={count}")
    profile = next(p for p in GPU.mig_profiles if p.name == name)
    assert (cuts is not None) == (count <= profile.max_instances)
    every = [index for cut in cuts or () for index in cut.slices]
    assert len(every) == len(set(every))


def test_what_nvidias_driver_leaves_out_is_offered_when_asked_for():
    facts = SimulatedHardware("mixed", Roots(), node_name="n").discover()
    usual = build_inventory(facts, DYNAMIC).by_name.keys()
    every = build_inventory(facts, MigPolicy(is_dynamic=True, with_all=True)).by_name.keys()
    assert usual <= every


def test_a_held_device_stays_published_when_its_gpu_is_no_longer_cut():
    name = next(d.name for d in OF_GPU if d.cut is not None)
    static = build_inventory(FACTS, MigPolicy(ownership=Ownership(held=frozenset([name]))))
    assert name in static.by_name
    assert len(static.devices) == 8, "seven whole GPUs, and of the eighth what is held"
