"""MIG on demand through the real ctypes path: made, found again, undone; refused, slow, lost, killed half-way."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.hardware.nvidia import NvidiaHardware
from dra_driver.hardware.port import Partitionable
from dra_driver.model.errors import HardwareError, Retry
from tests.hardware.conftest import Machine, by_address, codes, eventually
from tests.support.fake_nvml import Code, Gpu, a100_40, h100, hgx_h100, l40s

MIB = 2**20
PCI = "0000:65:00.0"


class Bench:
    """A machine with one GPU (H100 in MIG mode unless told otherwise), and the vendor that has seen it."""

    def __init__(self, machine: Machine, *gpus: Gpu, mig: bool = True, **options: float) -> None:
        self.machine = machine
        self.gpus = list(gpus) or [h100(PCI, 0)]
        for gpu in self.gpus:
            gpu.set_mig(mig)
        machine.add(*self.gpus)
        self.hardware = machine.hardware(**options)
        self.found = self.hardware.discover().gpus

    @property
    def gpu(self) -> GpuFacts:
        return self.found[0]

    def profile(self, name: str) -> MigProfile:
        return next(profile for profile in self.gpu.mig_profiles if profile.name == name)

    def create(self, name: str, start: int, *, index: int = 0, deadline_s: float = 10) -> PartitionFacts:
        return self.hardware.create_partition(self.found[index], self.profile(name), start, deadline_s)

    def destroy(self, partition: PartitionFacts, deadline_s: float = 10) -> None:
        placement = (partition.gi_profile_id, partition.start)
        self.hardware.destroy_partition(self.gpu, partition.uuid, deadline_s, placement=placement)

    def now(self) -> tuple[PartitionFacts, ...]:
        return self.hardware.partitions_now(self.gpu)

    def instances(self) -> tuple[int, int]:
        """Count GPU instances and compute instances of the first GPU."""
        gpu = self.machine.state.read().gpus[0]
        return len(gpu.gis), len(gpu.cis)


def refusal(call: object, *args: object, **options: object) -> tuple[str, Retry]:
    with pytest.raises(HardwareError) as caught:
        call(*args, **options)
    return caught.value.code, caught.value.retry


# -- profiles


def test_every_profile_and_placement_of_an_h100_is_offered(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    assert isinstance(bench.hardware, Partitionable)
    assert {(p.gi_profile_id, p.name, p.slices, p.size, p.starts, p.max_instances) for p in bench.gpu.mig_profiles} == {
        (19, "1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        (20, "1g.10gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        (15, "1g.20gb", 1, 2, (0, 2, 4, 6), 4),
        (14, "2g.20gb", 2, 2, (0, 2, 4), 3),
        (9, "3g.40gb", 3, 4, (0, 4), 2),
        (5, "4g.40gb", 4, 4, (0,), 1),
        (0, "7g.80gb", 7, 8, (0,), 1),
    }
    assert bench.gpu.mig_toggles_without_reset
    whole = bench.profile("7g.80gb")
    assert (whole.memory_bytes, whole.multiprocessors, whole.copy_engines) == (81152 * MIB, 132, 8)
    assert (whole.decoders, whole.encoders, whole.jpeg_engines, whole.ofa_engines) == (7, 0, 7, 1)


def test_profiles_are_read_once(machine: Machine) -> None:
    bench = Bench(machine)
    before = machine.calls("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    bench.hardware.discover()
    assert machine.calls("nvmlDeviceGetGpuInstancePossiblePlacements_v2") == before > 0


def test_a_driver_that_tells_placements_in_mig_mode_only_is_asked_again(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_placements_need_mode"] = 1
    bench = Bench(machine, gpu, mig=False)
    facts = bench.hardware.discover()
    assert facts.gpus[0].mig_profiles == ()
    assert codes(facts) == {"hardware.mig-profiles-unknown"}
    bench.hardware.set_mig_mode(bench.gpu, True, 10)
    facts = bench.hardware.discover()
    assert len(facts.gpus[0].mig_profiles) == 7
    assert codes(facts) == set()


def test_ampere_offers_profiles_but_does_not_toggle(machine: Machine) -> None:
    gpu = Bench(machine, a100_40(PCI, 0), mig=False).gpu
    assert len(gpu.mig_profiles) == 7
    assert not gpu.mig_toggles_without_reset


def test_a_card_without_mig_and_a_virtual_gpu_offer_nothing(machine: Machine) -> None:
    virtual = h100("0000:66:00.0", 1)
    virtual.facts["virtualization_mode"] = 2
    machine.add(l40s(PCI, 0), virtual)
    assert [gpu.mig_profiles for gpu in machine.discover().gpus] == [(), ()]


# -- making


@pytest.mark.parametrize("device", ["mig", "gpu"])
def test_what_is_made_is_what_discovery_finds(machine: Machine, device: str) -> None:
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


def test_the_whole_of_an_a100_is_made(machine: Machine) -> None:
    bench = Bench(machine, a100_40(PCI, 0))
    assert bench.create("7g.40gb", 0).profile == "7g.40gb"


def test_making_it_twice_is_making_it_once(machine: Machine) -> None:
    bench = Bench(machine)
    assert bench.create("1g.10gb", 3) == bench.create("1g.10gb", 3)
    assert bench.instances() == (1, 1)


def test_its_capability_nodes_are_known_at_once_and_forgotten_with_it(machine: Machine) -> None:
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


def test_what_overlaps_finds_no_room_and_leaves_nothing(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("4g.40gb", 0)
    for name, start in (("1g.10gb", 3), ("3g.40gb", 0), ("7g.80gb", 0)):
        assert refusal(bench.create, name, start) == ("hardware.insufficient-resources", Retry.LATER)
    assert bench.now() == (made,)
    assert bench.instances() == (1, 1)


def test_nothing_is_made_while_mig_mode_is_off(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    assert refusal(bench.create, "1g.10gb", 0) == ("hardware.mig-off", Retry.LATER)
    assert bench.now() == ()


@pytest.mark.parametrize(
    "function",
    ["nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetInfo"],
)
def test_what_fails_half_way_is_taken_back(machine: Machine, function: str) -> None:
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


def test_an_administrators_split_is_not_taken(machine: Machine) -> None:
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].partition("3g.40gb", 4, compute_slices=(1, 2))
    assert refusal(bench.create, "3g.40gb", 4) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.instances() == (1, 2)


def test_without_permission_it_says_who_may(machine: Machine) -> None:
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


# -- destroying


def test_destroying_may_be_repeated_and_another_partition_stays(machine: Machine) -> None:
    bench = Bench(machine)
    kept, gone = bench.create("1g.10gb", 0), bench.create("1g.10gb", 1)
    for _ in range(2):
        bench.destroy(gone)
    assert bench.now() == (kept,)


def test_what_is_in_use_is_waited_for(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].run(bench.gpus[0].cis[0], 4711)
    assert refusal(bench.destroy, made, 1.0) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.now() == (made,)

    def end_process() -> None:
        with machine.state.change():
            bench.gpus[0].processes.clear()

    timer = threading.Timer(0.2, end_process)
    timer.start()
    bench.destroy(made)
    timer.join()
    assert bench.instances() == (0, 0)


def test_a_gpu_instance_that_a_monitor_keeps_goes_with_the_next_call(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    bench.gpus[0].fail("nvmlGpuInstanceDestroy", Code.IN_USE)
    with machine.state.change():
        bench.gpus[0].fail("nvmlGpuInstanceDestroy", Code.IN_USE)
    assert refusal(bench.destroy, made, 1.0) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.instances() == (1, 0)
    with machine.state.change():
        bench.gpus[0].heal()
    bench.destroy(made)
    assert bench.instances() == (0, 0)


def test_a_gpu_instance_that_others_use_is_left(machine: Machine) -> None:
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].partition("3g.40gb", 4, compute_slices=(1, 2))
    first, second = bench.now()
    bench.destroy(first)
    assert bench.now() == (second,)
    bench.destroy(second)
    assert bench.instances() == (0, 0)


def test_the_undo_of_a_creation_without_uuid_takes_the_unfinished_and_nothing_else(machine: Machine) -> None:
    bench = Bench(machine)
    finished = bench.create("1g.10gb", 0)
    bench.create("1g.10gb", 1)
    with machine.state.change():
        bench.gpus[0].cis.pop(0 if bench.gpus[0].cis[0].gi != finished.gi_id else 1)
    for start in (0, 1, 2):
        bench.hardware.destroy_partition(bench.gpu, "", 10, placement=(19, start))
    assert bench.now() == (finished,)
    assert bench.instances() == (1, 1)


def test_destroying_while_mig_mode_is_off_is_nothing_to_do(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].unpartition()
        bench.gpus[0].set_mig(False)
    bench.destroy(made)


# -- MIG mode


def test_the_mode_is_switched_and_back_without_a_trace(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    for enabled in (True, True, False, False):
        bench.hardware.set_mig_mode(bench.gpu, enabled, 10)
        assert bench.hardware.discover().gpus[0].mig_enabled == enabled
    assert bench.hardware.discover().gpus == bench.found
    assert machine.calls("nvmlDeviceSetMigMode") == 2


def test_a_minor_that_changes_with_the_mode_is_read_anew(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_minor"] = 4
    bench = Bench(machine, gpu, mig=False)
    bench.hardware.set_mig_mode(bench.gpu, True, 10)
    assert bench.hardware.discover().gpus[0].minor == 4


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_mode_is_not_switched_off_under_an_instance(machine: Machine, is_finished: bool) -> None:
    bench = Bench(machine)
    bench.create("1g.10gb", 0)
    if not is_finished:
        with machine.state.change():
            bench.gpus[0].cis.clear()
    refused = refusal(bench.hardware.set_mig_mode, bench.gpu, False, 10)
    assert refused == ("hardware.partition-in-use", Retry.LATER)


def test_a_gpu_in_use_keeps_its_mode_and_nothing_is_pending(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    with machine.state.change():
        bench.gpus[0].processes.append(("compute", 4711, 0xFFFFFFFF, 0xFFFFFFFF, 1))
    refused = refusal(bench.hardware.set_mig_mode, bench.gpu, True, 1.0)
    assert refused == ("hardware.gpu-in-use", Retry.LATER)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"


def test_ampere_is_refused_without_asking_the_library(machine: Machine) -> None:
    bench = Bench(machine, a100_40(PCI, 0), mig=False)
    assert refusal(bench.hardware.set_mig_mode, bench.gpu, True, 10) == ("hardware.reset-needed", Retry.NEVER)
    assert machine.calls("nvmlDeviceSetMigMode") == 0


def test_a_reset_that_is_needed_all_the_same_is_not_left_pending(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_reset"] = 1
    bench = Bench(machine, gpu, mig=False)
    assert refusal(bench.hardware.set_mig_mode, bench.gpu, True, 10) == ("hardware.reset-needed", Retry.NEVER)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"


def test_uuid_and_address_are_all_that_a_caller_has_to_know_of_a_gpu(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    bare = GpuFacts(uuid=bench.gpu.uuid, pci_address=PCI, minor=0, memory_bytes=None)
    profile = replace(bench.profile("2g.20gb"), starts=())
    bench.hardware.set_mig_mode(bare, True, 10)
    made = bench.hardware.create_partition(bare, profile, 2, 10)
    assert bench.hardware.partitions_now(bare) == (made,) == bench.hardware.discover().gpus[0].partitions
    bench.hardware.destroy_partition(bare, made.uuid, 10)
    assert bench.instances() == (0, 0)
    bench.hardware.set_mig_mode(bare, False, 10)
    assert bench.hardware.discover().gpus == bench.found


def test_a_mode_that_takes_a_moment_is_waited_for(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_late"] = 1
    bench = Bench(machine, gpu, mig=False)

    def come_to_pass() -> None:
        with machine.state.change():
            bench.gpus[0].set_mig(True)

    timer = threading.Timer(0.3, come_to_pass)
    timer.start()
    bench.hardware.set_mig_mode(bench.gpu, True, 10)
    timer.join()
    assert bench.create("1g.10gb", 0).profile == "1g.10gb"
    assert machine.calls("nvmlDeviceSetMigMode") == 1


def test_a_mode_that_does_not_come_to_pass_is_taken_back(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_late"] = 1
    bench = Bench(machine, gpu, mig=False)
    assert refusal(bench.hardware.set_mig_mode, bench.gpu, True, 0.3) == ("hardware.gpu-in-use", Retry.LATER)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"


# -- libraries that tell it otherwise


@pytest.mark.parametrize(
    "without", ["nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo"]
)
@pytest.mark.parametrize("version", [2, 3])
def test_profiles_are_asked_for_by_whichever_version_the_library_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, without: str, version: int
) -> None:
    machine.install_library(without=(f"{without}ProfileInfo",))
    monkeypatch.setenv("FAKE_NVML_PROFILE_VERSION", str(version))
    bench = Bench(machine)
    assert len(bench.gpu.mig_profiles) == 7
    for name, start in (("1g.10gb+me", 0), ("3g.40gb", 4)):
        assert bench.create(name, start).profile == name
    assert {p.profile for p in bench.hardware.discover().gpus[0].partitions} == {"1g.10gb+me", "3g.40gb"}


def test_a_minor_that_changed_with_the_mode_is_in_the_containers_nodes(machine: Machine) -> None:
    """The caller's facts are those of before the mode was switched."""
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    before = {node.path for node in bench.hardware.device_edits(bench.gpu, made).device_nodes}
    stale = replace(bench.gpu, minor=7)
    assert {node.path for node in bench.hardware.device_edits(stale, made).device_nodes} == before


# -- slow, hanging, lost


def test_a_hanging_gpu_is_given_up_in_time_and_delays_no_other(machine: Machine) -> None:
    bench = Bench(machine, *hgx_h100(2))
    with machine.state.change():
        bench.gpus[0].hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    began = time.monotonic()
    assert refusal(bench.create, "1g.10gb", 0, deadline_s=0.3) == ("hardware.not-answering", Retry.LATER)
    bench.create("1g.10gb", 0, index=1)
    assert time.monotonic() - began < 5
    with machine.state.change():
        bench.gpus[0].heal()
    bench.create("1g.10gb", 0)
    assert len(bench.now()) == 1


def test_eight_gpus_are_cut_at_the_same_time(machine: Machine) -> None:
    gpus = hgx_h100(8)
    for gpu in gpus:
        gpu.slow("nvmlDeviceCreateGpuInstanceWithPlacement", 300)
    bench = Bench(machine, *gpus)
    began = time.monotonic()
    threads = [threading.Thread(target=bench.create, args=("1g.10gb", 0), kwargs={"index": i}) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 8 * 0.3
    assert [len(gpu.partitions) for gpu in bench.hardware.discover().gpus] == [1] * 8


def test_a_scan_of_the_same_gpu_does_not_hold_a_creation(machine: Machine) -> None:
    """The serial number is read before the video BIOS's version: the creation comes between the two."""
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].slow("nvmlDeviceGetSerial", 500)
    machine.log.write_text("")
    scan = threading.Thread(target=bench.hardware.discover)
    scan.start()
    eventually(lambda: "nvmlDeviceGetSerial" in machine.log.read_text())
    bench.create("1g.10gb", 0)
    scan.join()
    calls = machine.log.read_text().split()
    made = next(i for i, call in enumerate(calls) if "CreateGpuInstance" in call)
    assert [call for call in calls[:made] if "GetVbiosVersion" in call] == []
    eventually(lambda: len(bench.hardware.discover().gpus[0].partitions) == 1)


def test_two_claims_of_one_gpu_are_served_in_turn(machine: Machine) -> None:
    bench = Bench(machine)
    threads = [threading.Thread(target=bench.create, args=("1g.10gb", start)) for start in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [partition.start for partition in bench.now()] == list(range(7))


def test_a_lost_gpu_is_told_by_every_call(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].is_lost = True
    for call in (
        lambda: bench.create("1g.10gb", 1),
        lambda: bench.destroy(made),
        lambda: bench.hardware.set_mig_mode(bench.gpu, False, 1),
        bench.now,
    ):
        assert refusal(call) == ("hardware.gpu-lost", Retry.LATER)


def test_a_gpu_that_is_gone_from_the_bus_is_lost_and_one_that_cannot_be_read_is_not(machine: Machine) -> None:
    bench = Bench(machine, *hgx_h100(3))
    first, second, _ = bench.found
    with machine.state.change():
        machine.state.gpus.pop(0)
        machine.state.gpus[0].fail("nvmlDeviceGetUUID", Code.UNKNOWN)
    machine.node.remove_gpu(first.pci_address, first.minor)
    assert len(bench.hardware.discover().gpus) == 1
    assert refusal(bench.hardware.partitions_now, first) == ("hardware.gpu-lost", Retry.LATER)
    assert refusal(bench.hardware.partitions_now, second) == ("hardware.not-answering", Retry.LATER)


def test_a_node_that_lost_its_only_gpu_says_so_although_the_library_is_let_go(machine: Machine) -> None:
    bench = Bench(machine)
    machine.node.remove_gpu(PCI, 0)
    with machine.state.change():
        machine.state.gpus.clear()
    machine.node.unload_driver()
    (machine.folder / "lib/libnvidia-ml.so.1").unlink()
    (machine.folder / "node/dev/nvidiactl").unlink()
    assert bench.hardware.discover().gpus == ()
    assert refusal(bench.hardware.partitions_now, bench.gpu) == ("hardware.gpu-lost", Retry.LATER)


def test_without_an_open_library_nothing_is_done(machine: Machine) -> None:
    bench = Bench(machine)
    bench.hardware.close()
    assert refusal(bench.create, "1g.10gb", 0) == ("hardware.no-library", Retry.LATER)


def test_a_gpu_that_was_exchanged_is_not_cut_in_its_place(machine: Machine) -> None:
    bench = Bench(machine)
    other = replace(bench.gpu, uuid="GPU-of-yesterday")
    refused = refusal(bench.hardware.create_partition, other, bench.profile("1g.10gb"), 0, 10)
    assert refused == ("hardware.gpu-lost", Retry.LATER)


# -- killed

KILLED = """
import json, sys
from dra_driver.hardware.nvidia import NvidiaHardware
from dra_driver.hardware.port import Roots
hardware = NvidiaHardware(Roots(**json.loads(sys.argv[1])))
(gpu,) = hardware.discover().gpus
profile = next(p for p in gpu.mig_profiles if p.name == "2g.20gb")
hardware.set_mig_mode(gpu, True, 10)
made = hardware.create_partition(gpu, profile, 2, 10)
hardware.destroy_partition(gpu, made.uuid, 10, placement=(14, 2))
hardware.set_mig_mode(gpu, False, 10)
"""
STEPS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", STEPS)
def test_a_kill_at_any_step_can_be_undone_and_can_be_completed(machine: Machine, function: str, when: str) -> None:
    gpu = h100(PCI, 0)
    gpu.crash(function, when)
    machine.add(gpu)
    program = [sys.executable, "-c", KILLED, json.dumps(asdict(machine.node.roots))]
    assert subprocess.run(program, env=dict(os.environ), timeout=60, check=False).returncode == -9

    bench_hardware = machine.hardware()
    (found,) = bench_hardware.discover().gpus
    left = found.partitions
    for uuid in [partition.uuid for partition in left] or [""]:
        bench_hardware.destroy_partition(found, uuid, 10, placement=(14, 2))
    state = machine.state.read().gpus[0]
    assert (state.gis, state.cis) == ([], [])
    bench_hardware.set_mig_mode(found, False, 10)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"

    assert subprocess.run(program, env=dict(os.environ), timeout=60, check=False).returncode == 0


def test_another_process_sees_what_was_made(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("3g.40gb", 0)
    seen = bench.hardware.fingerprint()
    other: NvidiaHardware = machine.hardware()
    assert other.discover().gpus[0].partitions == (made,)
    bench.destroy(made)
    assert bench.hardware.fingerprint() != seen


# -- any order

steps = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps)
def test_whatever_is_asked_for_nothing_overlaps_and_everything_can_be_undone(
    machine: Machine, steps: list[tuple[int, int, bool]]
) -> None:
    if not machine.made:
        Bench(machine)
    hardware = machine.made[0]
    (gpu,) = hardware.discover().gpus
    for index, start, is_destroyed in steps:
        profile = gpu.mig_profiles[index]
        try:
            made = hardware.create_partition(gpu, profile, profile.starts[start % len(profile.starts)], 10)
        except HardwareError as error:
            if error.code != "hardware.insufficient-resources":
                raise
            continue
        if is_destroyed:
            hardware.destroy_partition(gpu, made.uuid, 10)
    left = hardware.partitions_now(gpu)
    slices = [i for partition in left for i in range(partition.start, partition.start + partition.size)]
    assert len(slices) == len(set(slices))
    for partition in left:
        hardware.destroy_partition(gpu, partition.uuid, 10)
    state = machine.state.read().gpus[0]
    assert (state.gis, state.cis) == ([], [])


# -- mixed with whole GPUs


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [("570.133.20", True), ("575.51.03", True), ("580.65.05", True), ("580.65.06", False), ("565.57.01", False)],
)
def test_mig_beside_whole_gpus_is_warned_of_on_drivers_that_hang(machine: Machine, version: str, is_bad: bool) -> None:
    gpus = hgx_h100(2)
    machine.state.driver_version = version
    machine.add(*gpus)
    hardware = machine.hardware()
    assert codes(hardware.discover()) == set()
    gpus[1].set_mig(True)
    machine.write()
    facts = hardware.discover()
    assert codes(facts) == ({"hardware.mixed-mig-driver"} if is_bad else set())
    assert not is_bad or "580.65.06" in facts.problems[0].message
    assert by_address(facts)[gpus[1].pci].mig_enabled
