"""Partitions made through the real ctypes path: each profile at each place, found again, half made, refused."""

from dataclasses import replace

import pytest

from dra_driver.base.errors import Retry
from dra_driver.hardware.nvidia.published import NvidiaGpu
from tests.hardware.nvidia.conftest import Machine, codes
from tests.hardware.nvidia.support.mig_bench import PCI, Bench, refusal
from tests.support.fake_nvml import Code, a100_40, h100


@pytest.mark.parametrize("device", ["mig", "gpu"])
def test_discovery_finds_the_partitions_that_were_made(machine: Machine, device: str) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["ci_device"] = device
    bench = Bench(machine, gpu)
    made = [bench.create("2g.20gb", 2), bench.create("1g.10gb+me", 0), bench.create("3g.40gb", 4)]
    assert set(bench.now()) == set(made) == set(bench.hardware.discover().gpus[0].partitions)
    assert len({partition.uuid for partition in made}) == 3


@pytest.mark.parametrize("name", ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"])
def test_every_profile_is_made_at_each_of_its_places_and_undone(machine: Machine, name: str) -> None:
    bench = Bench(machine)
    for start in bench.profile(name).starts:
        made = bench.create(name, start)
        assert (made.profile, made.start) == (name, start)
        assert bench.hardware.discover().gpus[0].partitions == (made,)
        bench.destroy(made)
        assert bench.instances() == (0, 0)


def test_a_partition_of_a_whole_a100_is_made(machine: Machine) -> None:
    bench = Bench(machine, a100_40(PCI, 0))
    assert bench.create("7g.40gb", 0).profile == "7g.40gb"


def test_creating_a_partition_twice_creates_it_once(machine: Machine) -> None:
    bench = Bench(machine)
    assert bench.create("1g.10gb", 3) == bench.create("1g.10gb", 3)
    assert bench.instances() == (1, 1)


def test_capability_nodes_are_known_once_a_partition_is_made_and_forgotten_with_it(machine: Machine) -> None:
    bench = Bench(machine)
    made = [bench.create("1g.10gb", start) for start in range(3)]
    paths = [{node.path for node in bench.hardware.device_edits(bench.gpu, p).device_nodes} for p in made]
    caps = [{path for path in some if "nvidia-caps" in path} for some in paths]
    assert all(len(some) == 2 for some in caps)
    assert len(set.union(*caps)) == 6
    bench.destroy(made[1])
    assert refusal(bench.hardware.device_edits, bench.gpu, made[1]) == ("hardware.node-missing", Retry.LATER)


def test_instance_ids_are_used_again_and_name_the_new_partition(machine: Machine) -> None:
    bench = Bench(machine)
    first = bench.create("1g.10gb", 0)
    bench.destroy(first)
    second = bench.create("2g.20gb", 0)
    assert (first.gi_id, first.ci_id) == (second.gi_id, second.ci_id)
    assert first.uuid != second.uuid
    bench.destroy(first)
    assert bench.now() == (second,)


def test_a_partition_that_overlaps_another_is_refused_and_leaves_nothing(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("4g.40gb", 0)
    for name, start in (("1g.10gb", 3), ("3g.40gb", 0), ("7g.80gb", 0)):
        assert refusal(bench.create, name, start) == ("hardware.insufficient-resources", Retry.LATER)
    assert bench.now() == (made,)
    assert bench.instances() == (1, 1)


def test_no_partition_is_created_while_mig_mode_is_off(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    assert refusal(bench.create, "1g.10gb", 0) == ("hardware.mig-off", Retry.LATER)
    assert bench.now() == ()


@pytest.mark.parametrize(
    "function",
    ["nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetInfo"],
)
def test_a_creation_that_fails_half_way_is_undone(machine: Machine, function: str) -> None:
    bench = Bench(machine)
    bench.gpus[0].fail(function, Code.UNKNOWN)
    machine.write()
    assert refusal(bench.create, "2g.20gb", 0) == ("hardware.partitioning-failed", Retry.LATER)
    assert bench.instances() == (0, 0)


def test_a_gpu_instance_that_a_crash_left_is_completed(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("2g.20gb", 2)
    with machine.state.change():
        bench.gpus[0].cis.clear()
    assert bench.now() == ()
    assert bench.create("2g.20gb", 2) == made
    assert bench.instances() == (1, 1)


def test_an_instance_that_an_administrator_divided_is_not_used(machine: Machine) -> None:
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].partition("3g.40gb", 4, compute_slices=(1, 2))
    assert refusal(bench.create, "3g.40gb", 4) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.instances() == (1, 2)


def test_a_creation_without_permission_is_refused_for_good(machine: Machine) -> None:
    bench = Bench(machine)
    bench.gpus[0].fail("nvmlDeviceCreateGpuInstanceWithPlacement", Code.NO_PERMISSION)
    machine.write()
    assert refusal(bench.create, "1g.10gb", 0) == ("hardware.no-permission", Retry.NEVER)


def test_an_instance_without_a_device_is_a_problem(machine: Machine) -> None:
    bench = Bench(machine)
    bench.create("2g.20gb", 2)
    assert codes(bench.hardware.discover()) == set()
    with machine.state.change():
        bench.gpus[0].cis.clear()
    (problem,) = bench.hardware.discover().problems
    assert (problem.code, problem.subject) == ("hardware.unfinished-partition", PCI)
    assert "profile 14 at slice 2" in problem.message


def test_uuid_and_address_are_all_that_a_caller_has_to_know_of_a_gpu(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    bare = NvidiaGpu(uuid=bench.gpu.uuid, pci_address=PCI, minor=0, memory_bytes=None)
    profile = replace(bench.profile("2g.20gb"), starts=())
    bench.hardware.set_mig_mode(bare, True, 10)
    made = bench.hardware.create_partition(bare, profile, 2, 10).facts
    assert bench.hardware.partitions_now(bare) == (made,) == bench.hardware.discover().gpus[0].partitions
    bench.hardware.destroy_partition(bare, made.uuid, 10)
    assert bench.instances() == (0, 0)
    bench.hardware.set_mig_mode(bare, False, 10)
    assert bench.hardware.discover().gpus == bench.found
