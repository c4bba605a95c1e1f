"""MIG devices that exist: names, sizes, placements, and what is left out. Names also against the vendor's figures."""

import json
import os
from pathlib import Path

import pytest

from dra_driver.hardware.facts import PartitionFacts
from dra_driver.hardware.nvidia.mig_reading import profile_in_name, profile_name
from tests.hardware.nvidia.conftest import Machine, codes
from tests.support.fake_nvml import Code, a100_40, gb200, h100

MIB = 2**20
SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).resolve().parents[5] / "shared"))


def test_a_partition_has_its_profile_s_sizes_and_its_placement(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    (ci,) = gpu.partition("2g.20gb", 2)
    machine.write()
    facts = machine.discover()
    assert facts.problems == ()
    assert facts.gpus[0].mig_enabled
    assert facts.gpus[0].partitions == (
        PartitionFacts(
            uuid=ci.uuid,
            profile="2g.20gb",
            gi_profile_id=14,
            gi_id=1,
            ci_id=0,
            start=2,
            size=2,
            memory_bytes=20096 * MIB,
            multiprocessors=32,
            copy_engines=2,
            decoders=2,
            encoders=0,
            jpeg_engines=2,
            ofa_engines=0,
        ),
    )


@pytest.mark.parametrize("make", [h100, a100_40, gb200])
def test_every_profile_gets_the_name_that_nvidia_gives_it(machine: Machine, make: object) -> None:
    (gpu,) = machine.add(make("0000:65:00.0", 0))
    starts = {}
    for profile in gpu.profiles:
        gpu.unpartition()
        gpu.partition(profile.name, 0)
        machine.write()
        (partition,) = machine.discover().gpus[0].partitions
        starts[partition.profile] = partition.gi_profile_id
    assert starts == {profile.name: profile.id for profile in gpu.profiles}


def test_parts_of_a_gpu_instance_are_named_and_sized_as_parts(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.partition("3g.40gb", 4, compute_slices=(1, 2))
    machine.write()
    found = machine.discover().gpus[0].partitions
    assert [(p.profile, p.gi_id, p.ci_id, p.start, p.multiprocessors, p.copy_engines) for p in found] == [
        ("1c.3g.40gb", 1, 0, 4, 20, 3),
        ("2c.3g.40gb", 1, 1, 4, 40, 3),
    ]
    assert {p.memory_bytes for p in found} == {40448 * MIB}


def test_partitions_are_in_order_of_placement_and_gaps_do_not_matter(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    for start in (4, 0, 6):
        gpu.partition("1g.10gb", start)
    gpu.cis[1].index = 5
    machine.write()
    assert [p.start for p in machine.discover().gpus[0].partitions] == [0, 4, 6]


def test_a_gpu_in_mig_mode_without_instances_has_no_partitions(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.set_mig(True)
    machine.write()
    facts = machine.discover()
    assert (facts.gpus[0].mig_enabled, facts.gpus[0].partitions, facts.problems) == (True, (), ())


def test_a_mode_that_waits_for_a_reset_is_reported(machine: Machine) -> None:
    (gpu,) = machine.add(a100_40("0000:07:00.0", 0))
    gpu.set_mig(False, pending=True)
    machine.write()
    facts = machine.discover()
    assert not facts.gpus[0].mig_enabled
    assert codes(facts) == {"hardware.mig-mode-pending"}


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetGpuInstanceProfileInfo"]
)
def test_a_partition_that_can_t_be_placed_is_left_out_with_a_problem(machine: Machine, function: str) -> None:
    broken, whole = machine.add(h100("0000:65:00.0", 0), h100("0000:66:00.0", 1))
    for gpu in (broken, whole):
        gpu.partition("1g.10gb", 0)
    for version in (function, f"{function}V"):
        broken.fail(version, Code.NO_PERMISSION)
    machine.write()
    facts = machine.discover()
    assert [len(g.partitions) for g in facts.gpus] == [0, 1]
    assert facts.gpus[0].mig_enabled, "a GPU in MIG mode never counts as whole"
    assert {p.subject for p in facts.problems} == {broken.pci}
    assert "hardware.partition-unreadable" in codes(facts)


def test_the_product_name_gives_the_profile_where_the_numbers_are_missing(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.partition("1g.10gb+me", 3)
    gpu.fail("nvmlDeviceGetAttributes_v2", Code.NOT_SUPPORTED)
    machine.write()
    (partition,) = machine.discover().gpus[0].partitions
    assert (partition.profile, partition.multiprocessors) == ("1g.10gb+me", 16)


def test_a_gpu_lost_while_its_partitions_are_read_is_lost(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.partition("1g.10gb", 0)
    gpu.fail("nvmlGpuInstanceGetInfo", Code.GPU_IS_LOST)
    machine.write()
    facts = machine.discover()
    assert facts.gpus == ()
    assert codes(facts) == {"hardware.gpu-lost"}


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", "1c.3g.40gb"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb+me.all", "1g.24gb+me.all"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb-me", "1g.24gb-me"),
        ("NVIDIA H100 80GB HBM3", None),
        ("MIG device", None),
    ],
)
def test_a_profile_is_taken_from_a_product_name_only_where_it_has_one(name: str, profile: str | None) -> None:
    assert profile_in_name(name) == profile


def test_no_name_is_made_of_missing_numbers() -> None:
    known = {"gi_slices": 1, "ci_slices": 1, "constant": 0, "memory_mib": 9984, "gpu_memory_bytes": 81559 * MIB}
    assert profile_name(**known) == "1g.10gb"
    for key in ("gi_slices", "ci_slices", "memory_mib", "gpu_memory_bytes"):
        assert profile_name(**{**known, key: 0}) is None


def test_the_formula_gives_every_name_in_the_vendor_s_tables() -> None:
    path = SHARED / "hardware/gpu-facts.json"
    if not path.exists():
        pytest.skip("recordings and figures beside the repository are not here (DRA_SHARED)")
    tables = json.loads(path.read_text())
    constants = tables["nvml_constants"]["NVML_GPU_INSTANCE_PROFILE"]
    checked = 0
    for model in tables["models"].values():
        total = (model.get("memory_total_mib") or {}).get("value")
        for profile in model["mig_profiles"]:
            if not total or not profile.get("memory_mib") or profile.get("nvml_profile") not in constants:
                continue
            slices = profile["compute_slices"]
            made = profile_name(
                gi_slices=slices,
                ci_slices=slices,
                constant=constants[profile["nvml_profile"]],
                memory_mib=profile["memory_mib"],
                gpu_memory_bytes=total * MIB,
            )
            assert made == profile["name"], (model["product_name"], profile)
            checked += 1
    assert checked > 20
