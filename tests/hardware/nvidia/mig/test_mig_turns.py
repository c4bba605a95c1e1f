"""Calls for partitions beside other calls, during a scan, on a lost GPU, after a kill, and from another process."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from tests.hardware.nvidia.conftest import Machine
from tests.hardware.nvidia.support.mig_bench import PCI, Bench, refusal
from tests.support.fake_nvml import MIG_STEPS, Code, h100, hgx_h100
from tests.support.waiting import until

KILLED = """
import json, sys
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Roots
hardware = NvidiaHardware(Roots(**json.loads(sys.argv[1])))
(gpu,) = hardware.discover().gpus
profile = next(p for p in gpu.mig_profiles if p.name == "2g.20gb")
hardware.set_mig_mode(gpu, True, 10)
made = hardware.create_partition(gpu, profile, 2, 10).facts
hardware.destroy_partition(gpu, made.uuid, 10, placement=(14, 2))
hardware.set_mig_mode(gpu, False, 10)
"""


steps = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12)


def test_a_hanging_gpu_is_given_up_in_time_and_delays_no_other(machine: Machine) -> None:
    bench = Bench(machine, *hgx_h100(2))
    with machine.state.change():
        bench.gpus[0].hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    assert refusal(bench.create, "1g.10gb", 0, deadline_s=0.3) == ("hardware.not-answering", Retry.LATER)
    bench.create("1g.10gb", 0, index=1)
    with machine.state.change():
        bench.gpus[0].heal()
    bench.create("1g.10gb", 0)
    assert len(bench.now()) == 1


def test_eight_gpus_are_partitioned_at_the_same_time(machine: Machine) -> None:
    gpus = hgx_h100(8)
    bench = Bench(machine, *gpus)
    with machine.state.change():
        for gpu in gpus:
            gpu.hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    options = [{"index": index, "deadline_s": 60} for index in range(8)]
    threads = [threading.Thread(target=bench.create, args=("1g.10gb", 0), kwargs=one) for one in options]
    for thread in threads:
        thread.start()
    until(lambda: machine.calls("nvmlDeviceCreateGpuInstanceWithPlacement") == 8, "all eight to be made")
    with machine.state.change():
        for gpu in gpus:
            gpu.heal()
    for thread in threads:
        thread.join()
    assert [len(gpu.partitions) for gpu in bench.hardware.discover().gpus] == [1] * 8


def test_a_scan_of_the_same_gpu_does_not_delay_a_creation(machine: Machine) -> None:
    """The serial number is read before the video BIOS's version: the creation comes between the two."""
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].slow("nvmlDeviceGetSerial", 500)
    machine.log.write_text("")
    scan = threading.Thread(target=bench.hardware.discover)
    scan.start()
    until(lambda: "nvmlDeviceGetSerial" in machine.log.read_text())
    bench.create("1g.10gb", 0)
    scan.join()
    calls = machine.log.read_text().split()
    made = next(i for i, call in enumerate(calls) if "CreateGpuInstance" in call)
    assert [call for call in calls[:made] if "GetVbiosVersion" in call] == []
    until(lambda: len(bench.hardware.discover().gpus[0].partitions) == 1)


def test_two_claims_of_one_gpu_are_served_in_turn(machine: Machine) -> None:
    bench = Bench(machine)
    threads = [threading.Thread(target=bench.create, args=("1g.10gb", start)) for start in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [partition.start for partition in bench.now()] == list(range(7))


def test_every_call_reports_a_lost_gpu(machine: Machine) -> None:
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


def test_a_node_that_lost_its_only_gpu_reports_it_although_the_library_is_released(machine: Machine) -> None:
    bench = Bench(machine)
    machine.node.remove_gpu(PCI, 0)
    with machine.state.change():
        machine.state.gpus.clear()
    machine.node.unload_driver()
    machine.library.unlink()
    (machine.folder / "node/dev/nvidiactl").unlink()
    assert bench.hardware.discover().gpus == ()
    assert refusal(bench.hardware.partitions_now, bench.gpu) == ("hardware.gpu-lost", Retry.LATER)


def test_without_an_open_library_nothing_is_done(machine: Machine) -> None:
    bench = Bench(machine)
    bench.hardware.close()
    assert refusal(bench.create, "1g.10gb", 0) == ("hardware.no-library", Retry.LATER)


def test_a_gpu_in_place_of_another_is_not_partitioned(machine: Machine) -> None:
    bench = Bench(machine)
    other = replace(bench.gpu, uuid="GPU-of-yesterday")
    refused = refusal(bench.hardware.create_partition, other, bench.profile("1g.10gb"), 0, 10)
    assert refused == ("hardware.gpu-lost", Retry.LATER)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", MIG_STEPS)
def test_a_kill_at_any_step_can_be_undone_and_can_be_completed(machine: Machine, function: str, when: str) -> None:
    gpu = h100(PCI, 0)
    gpu.crash(function, when)
    machine.add(gpu)
    program = [sys.executable, "-c", KILLED, json.dumps(machine.node.roots._asdict())]
    assert subprocess.run(program, env=dict(os.environ), timeout=120, check=False).returncode == -9

    bench_hardware = machine.hardware()
    (found,) = bench_hardware.discover().gpus
    left = found.partitions
    for uuid in [partition.uuid for partition in left] or [""]:
        bench_hardware.destroy_partition(found, uuid, 10, placement=(14, 2))
    state = machine.state.read().gpus[0]
    assert (state.gis, state.cis) == ([], [])
    bench_hardware.set_mig_mode(found, False, 10)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"

    assert subprocess.run(program, env=dict(os.environ), timeout=120, check=False).returncode == 0


def test_another_process_sees_what_was_made(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("3g.40gb", 0)
    seen = bench.hardware.fingerprint()
    other: NvidiaHardware = machine.hardware()
    assert other.discover().gpus[0].partitions == (made,)
    bench.destroy(made)
    assert bench.hardware.fingerprint() != seen


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps)
def test_whatever_is_requested_no_partitions_overlap_and_all_can_be_destroyed(
    machine: Machine, steps: list[tuple[int, int, bool]]
) -> None:
    if not machine.made:
        Bench(machine)
    hardware = machine.made[0]
    (gpu,) = hardware.discover().gpus
    for index, start, is_destroyed in steps:
        profile = gpu.mig_profiles[index]
        try:
            made = hardware.create_partition(gpu, profile, profile.starts[start % len(profile.starts)], 10).facts
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
