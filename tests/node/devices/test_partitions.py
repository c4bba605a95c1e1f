"""GPUs that may be partitioned: what they are offered as, and that devices handed out together never overlap."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.devices.geometry import WantedGeometry, wanted_of
from dra_driver.node.devices.partitions import (
    MigPolicy,
    Ownership,
    counters_of_gpu,
    counters_of_placement,
    placement_name,
    placements_of,
)

SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[4] / "shared"))
DYNAMIC = MigPolicy(is_dynamic=True)
FACTS = SimulatedHardware("dgx-h100", Roots(), node_name="n").discover()
GPU = FACTS.gpus[0]
INVENTORY = build_inventory(FACTS, DYNAMIC)
OF_GPU = [d for d in INVENTORY.devices if d.gpu.pci_address == GPU.pci_address]


def test_eight_h100_are_8_whole_gpus_and_200_partitions():
    assert len(INVENTORY.devices) == 208
    assert sum(d.placement is None for d in INVENTORY.devices) == 8
    assert len(INVENTORY.offering.counter_sets) == 8
    assert [d.name for d in INVENTORY.offering.plain] == [d.name for d in INVENTORY.devices if d.placement is None]
    assert INVENTORY.problems == ()


def test_a_change_of_one_gpu_leaves_the_devices_of_the_others_the_same_objects():
    placement = next(d.placement for d in OF_GPU if d.placement is not None)
    made = replace(placement.expected_partition, uuid="MIG-1", gi_id=7, ci_id=0)
    changed = replace(GPU, mig_enabled=True, partitions=(made,))
    ours = Ownership(uuids=frozenset({"MIG-1"}), modes=frozenset({GPU.pci_address}))
    facts = SimulatedHardware("dgx-h100", Roots(), node_name="n").discover()
    before = build_inventory(facts, DYNAMIC)  # here, because what is kept of it must not depend on other tests
    now = build_inventory(replace(facts, gpus=(changed, *facts.gpus[1:])), MigPolicy(is_dynamic=True, ownership=ours))
    assert [d.partition for d in now.devices if d.placement == placement and d.gpu == changed] == [made]
    assert all(d.gpu == changed for d in now.devices if d.gpu.pci_address == GPU.pci_address)
    others = [d for d in now.devices if d.gpu.pci_address != GPU.pci_address]
    assert len(others) == 7 * 26
    assert all(d is before.by_name[d.name] for d in others)
    assert build_inventory(facts, DYNAMIC) == before


def test_capacities_counters_and_placements_are_those_that_nvidias_driver_publishes():
    path = SHARED / "peers/nvidia-published.json"
    if not path.exists():
        pytest.skip("recordings and figures beside the repository are not here (DRA_SHARED)")
    slices = json.loads(path.read_text())["main_dynmig_h100"]
    (shared,) = (c for s in slices for c in s.get("sharedCounters", ()))
    assert counter_set_wire("x", counters_of_gpu(placements_of(GPU)))["counters"] == shared["counters"]
    theirs = {d["name"].removeprefix("gpu-0"): d for s in slices for d in s.get("devices", ())}
    prefix = "gpu-" + GPU.pci_address.replace(":", "-").replace(".", "-")
    ours = {d.name.removeprefix(prefix): device_wire(d) for d in OF_GPU}
    assert ours.keys() == theirs.keys()
    for name, device in theirs.items():
        assert ours[name]["capacity"] == device["capacity"]
        assert ours[name]["consumesCounters"][0]["counters"] == device["consumesCounters"][0]["counters"]
        mine = {key: value for key, value in ours[name]["attributes"].items() if key in device["attributes"]}
        unknown = {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}  # not in this profile
        assert device["attributes"].keys() - mine.keys() <= unknown
        assert {key: [*value] for key, value in mine.items()} == {
            key: [*value] for key, value in device["attributes"].items() if key in mine
        }, "each attribute is of the same kind"
        assert mine.get("profile") == device["attributes"].get("profile")


def reference_models() -> dict:
    path = SHARED / "hardware/gpu-facts.json"
    models = json.loads(path.read_text())["models"] if path.exists() else {}
    return {name: model for name, model in models.items() if model.get("mig_profiles")}


MODEL_OF = {
    "A30": "a30",
    "A100-SXM4-40GB": "a100-sxm4-40gb",
    "A100-SXM4-80GB": "a100-sxm4-80gb",
    "H100-80GB-HBM3": "h100-sxm5-80gb",
    "H100-PCIe": "h100-pcie",
    "H200-141GB": "h200",
    "GH200": "gh200",
    "B200": "b200",
    "GB200": "gb200",
    "RTX-PRO-6000-Blackwell": "rtx-pro-6000-blackwell",
}
_ENGINE_NAMES = {"copy": "copyEngines", "decoder": "decoders", "encoder": "encoders", "jpeg": "jpegEngines"}


@pytest.mark.parametrize("name", MODEL_OF)
def test_every_model_is_partitioned_as_its_reference_table_says(name, tmp_path):
    """Each placement has the counters of its row, and what NVIDIA's driver leaves out is offered only on request."""
    if name not in (models := reference_models()):
        pytest.skip("recordings and figures beside the repository are not here (DRA_SHARED)")
    gpu = model_of(MODEL_OF[name], tmp_path)
    rows = {row["name"]: row for row in models[name]["mig_profiles"]}
    known = {profile.name for profile in gpu.mig_profiles}
    assert known <= rows.keys()
    for with_all in (False, True):
        policy = MigPolicy(is_dynamic=True, with_all=with_all)
        inventory = build_inventory(replace(FACTS, gpus=(gpu,)), policy)
        wanted = {n for n in known if with_all or n.endswith(("gb", "gb+me"))}
        placements = [d for d in inventory.devices if d.placement is not None]
        expected = {(n, start) for n in wanted for start in _placements(rows[n])["starts"]}
        assert {(d.attributes["profile"], d.placement.start) for d in placements} == expected
        for device in placements:
            row = rows[device.attributes["profile"]]
            assert len(slices_of(device)) == _placements(row)["size"]
            assert device.capacity["memory"] == row["memory_mib"] << 20
            assert device.capacity["multiprocessors"] == row["sms"]
            if row.get("engines"):
                assert all(device.capacity[ours] == row["engines"][key] for key, ours in _ENGINE_NAMES.items())
        (counters,) = inventory.offering.counter_sets.values()
        for device in inventory.devices:
            assert all(counters[key] >= amount for key, amount in device.counters.items())
            if device.placement is None:
                assert device.counters == counters


def model_of(model: str, folder: Path):
    """Return the facts of one GPU of a model, in MIG mode where only a reset can switch it on."""
    document = {
        "about": "one GPU",
        "nodeName": "n",
        "lookedUp": "2026-11-21",
        "sources": ["made up"],
        "driverVersion": "580.126.20",
        "cudaDriverVersion": "13.0",
        "gpus": [{"pci": "0000:01:00.0", "model": model, "mig": []}],
    }
    (folder / "profile.yaml").write_text(json.dumps(document))
    (gpu,) = SimulatedHardware(str(folder / "profile.yaml"), Roots(), node_name="n").discover().gpus
    return gpu


def _placements(row: dict) -> dict:
    return row["placements"] or row["placements_inferred"]


def slices_of(device) -> set[str]:
    return {name for name in device.counters if name.startswith("memory-slice-")}


@settings(deadline=None)
@given(st.permutations(OF_GPU))
def test_partitions_that_the_counters_allow_together_never_overlap(order):
    left = dict(INVENTORY.offering.counter_sets[OF_GPU[0].counter_set])
    taken: list = []
    for device in order:
        if all(left[name] >= amount for name, amount in device.counters.items()):
            left = {name: left[name] - device.counters.get(name, 0) for name in left}
            taken.append(device)
    every = [name for device in taken for name in slices_of(device)]
    assert len(every) == len(set(every))
    assert taken


def test_a_partition_consumes_the_slices_of_its_placement_and_a_whole_gpu_all_of_them():
    for device in OF_GPU:
        if device.placement is not None:
            assert slices_of(device) == {f"memory-slice-{i}" for i in device.placement.slices}
        else:
            assert slices_of(device) == {f"memory-slice-{i}" for i in range(8)}


@settings(deadline=None)
@given(st.sampled_from(["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]), st.integers(1, 8))
def test_partitions_of_one_geometry_never_overlap(name, count):
    wanted = wanted_of(GPU, 0, f"{name}={count}", {})
    placements = wanted.placements if isinstance(wanted, WantedGeometry) else None
    profile = next(p for p in GPU.mig_profiles if p.name == name)
    assert (placements is not None) == (count <= profile.max_instances)
    every = [index for placement in placements or () for index in placement.slices]
    assert len(every) == len(set(every))


def test_what_nvidias_driver_leaves_out_is_offered_when_asked_for(tmp_path):
    facts = replace(FACTS, gpus=(model_of("rtx-pro-6000-blackwell", tmp_path),))
    usual = build_inventory(facts, DYNAMIC).by_name.keys()
    every = build_inventory(facts, MigPolicy(is_dynamic=True, with_all=True)).by_name.keys()
    assert usual < every


def test_a_held_device_stays_published_when_its_gpu_is_no_longer_partitioned():
    name = next(d.name for d in OF_GPU if d.placement is not None)
    static = build_inventory(FACTS, MigPolicy(ownership=Ownership(held=frozenset([name]))))
    assert name in static.by_name
    assert len(static.devices) == 8, "seven whole GPUs, and of the eighth what is held"


def test_a_held_device_of_a_profile_that_is_no_longer_offered_stays_published_and_counted():
    plain = next(profile for profile in GPU.mig_profiles if profile.name == "1g.10gb")
    gpu = replace(GPU, mig_profiles=(*GPU.mig_profiles, replace(plain, name="1g.10gb+gfx", gi_profile_id=47)))
    facts = replace(FACTS, gpus=(gpu, *FACTS.gpus[1:]))
    placement = next(
        placement for placement in placements_of(gpu, with_all=True) if placement.profile.gi_profile_id == 47
    )
    name = placement_name(gpu, placement)
    held = build_inventory(facts, replace(DYNAMIC, ownership=Ownership(held=frozenset([name]))))
    assert held.by_name.keys() - build_inventory(facts, DYNAMIC).by_name.keys() == {name}
    device = next(d for d in held.devices if d.name == name)
    assert device.counters == counters_of_placement(placement), "its part of the GPU is not offered again"
    assert device.counter_set in held.offering.counter_sets


@pytest.mark.parametrize("model", ["b200", "gb200"])
def test_a_gpu_whose_large_profiles_are_unknown_is_offered_whole_and_in_full_rows_of_partitions(model, tmp_path):
    gpu = model_of(model, tmp_path)
    inventory = build_inventory(replace(FACTS, gpus=(gpu,)), DYNAMIC)
    (whole,) = (d for d in inventory.devices if d.placement is None)
    assert whole.capacity == {"memory": gpu.memory_bytes}
    (counters,) = inventory.offering.counter_sets.values()
    placements = [d for d in inventory.devices if d.placement is not None]
    for rows in (
        [("1g.23gb", start) for start in range(7)],
        [(next(p.name for p in gpu.mig_profiles if p.name.startswith("2g")), start) for start in (0, 2, 4)],
        [(next(p.name for p in gpu.mig_profiles if p.size == 2 and p.slices == 1), start) for start in (0, 2, 4, 6)],
    ):
        together = [d for d in placements if (d.attributes["profile"], d.placement.start) in rows]
        assert len(together) == len(rows)
        for name, amount in counters.items():
            assert sum(d.counters.get(name, 0) for d in together) <= amount, name
    media = next(d for d in placements if d.attributes["profile"].endswith("+me"))
    assert counters["ofa-engines"] == media.counters["ofa-engines"], "one partition at a time has the media engines"
