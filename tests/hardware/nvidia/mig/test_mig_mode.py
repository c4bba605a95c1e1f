"""MIG mode through the real ctypes path: switched, refused, taken back, and what changes with it."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import Retry
from dra_driver.hardware.nvidia import partitioning
from tests.hardware.nvidia.conftest import Machine
from tests.hardware.nvidia.support.mig_bench import PCI, Bench, refusal
from tests.support.fake_nvml import a100_40, h100


def test_the_mode_is_switched_on_and_off_again_without_a_trace(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    for enabled in (True, True, False, False):
        bench.hardware.set_mig_mode(bench.gpu, enabled, 10)
        assert bench.hardware.discover().gpus[0].mig_enabled == enabled
    assert bench.hardware.discover().gpus == bench.found
    assert machine.calls("nvmlDeviceSetMigMode") == 2


def test_a_minor_that_changes_with_the_mode_is_read_again(machine: Machine) -> None:
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


def test_a_gpu_in_use_is_not_reported_as_not_answering_for_lack_of_time(machine: Machine, monkeypatch) -> None:
    """The last attempt begins so late that its answer can't come in time."""
    too_long = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(0.5))
    monkeypatch.setattr(partitioning, "time", too_long)
    bench = Bench(machine, mig=False)
    with machine.state.change():
        bench.gpus[0].processes.append(("compute", 4711, 0xFFFFFFFF, 0xFFFFFFFF, 1))
    assert refusal(bench.hardware.set_mig_mode, bench.gpu, True, 0.5) == ("hardware.gpu-in-use", Retry.LATER)


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


def test_a_mode_that_takes_a_moment_is_waited_for(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_late"] = 1
    bench = Bench(machine, gpu, mig=False)

    def take_effect() -> None:
        with machine.state.change():
            bench.gpus[0].set_mig(True)

    timer = threading.Timer(0.3, take_effect)
    timer.start()
    bench.hardware.set_mig_mode(bench.gpu, True, 10)
    timer.join()
    assert bench.create("1g.10gb", 0).profile == "1g.10gb"
    assert machine.calls("nvmlDeviceSetMigMode") == 1


def test_a_mode_that_does_not_take_effect_is_taken_back(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_late"] = 1
    bench = Bench(machine, gpu, mig=False)
    assert refusal(bench.hardware.set_mig_mode, bench.gpu, True, 0.3) == ("hardware.gpu-in-use", Retry.LATER)
    assert machine.state.read().gpus[0].facts["mig_mode"] == "0 0"


def test_a_minor_that_changed_with_the_mode_is_in_the_containers_nodes(machine: Machine) -> None:
    """The caller's facts are from before the mode was switched."""
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    before = {node.path for node in bench.hardware.device_edits(bench.gpu, made).device_nodes}
    stale = replace(bench.gpu, minor=7)
    assert {node.path for node in bench.hardware.device_edits(stale, made).device_nodes} == before
