"""Compute mode through NVML, time slice through nvidia-smi: fakes of both, each with a log of its calls."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.nvidia import library as sysfs
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import MemoryLimiting, Roots, Shareable
from tests.hardware.nvidia.conftest import Machine
from tests.support.fake_nvml import Code, h100
from tests.support.programs.fake_nvidia_smi import FakeNvidiaSmi
from tests.support.waiting import unhindered

SOON = 10.0


def shared(gpu: NvidiaGpu, mig_uuid: str | None = None) -> SharedDevice:
    return SharedDevice("gpu-x", gpu.uuid, gpu.minor, gpu.pci_address, mig_uuid)


def discovered(machine: Machine) -> tuple[NvidiaHardware, NvidiaGpu]:
    hardware = machine.hardware()
    assert isinstance(hardware, Shareable)
    return hardware, hardware.discover().gpus[0]


def test_the_compute_mode_of_a_gpu_is_set_and_read_back(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0), h100("0000:66:00.0", 1))
    hardware, gpu = discovered(machine)
    device = shared(gpu)
    assert hardware.compute_mode(device, SOON) is ComputeMode.DEFAULT
    hardware.set_compute_mode(device, ComputeMode.EXCLUSIVE_PROCESS, SOON)
    assert hardware.compute_mode(device, SOON) is ComputeMode.EXCLUSIVE_PROCESS
    assert machine.state.read().gpus[0].facts["compute_mode"] == "3"
    assert hardware.compute_mode(shared(hardware.discover().gpus[1]), SOON) is ComputeMode.DEFAULT


def test_a_mig_device_has_a_compute_mode_of_its_own_or_is_refused_one(machine: Machine) -> None:
    (fake,) = machine.add(h100("0000:65:00.0", 0))
    fake.facts["mig_compute_modes"] = 1
    fake.partition("1g.10gb", 0)
    fake.partition("1g.10gb", 1)
    machine.write()
    hardware, gpu = discovered(machine)
    first, second = (shared(gpu, partition.uuid) for partition in gpu.partitions)
    hardware.set_compute_mode(first, ComputeMode.EXCLUSIVE_PROCESS, SOON)
    assert hardware.compute_mode(first, SOON) is ComputeMode.EXCLUSIVE_PROCESS
    assert hardware.compute_mode(second, SOON) is ComputeMode.DEFAULT
    with machine.state.change():
        fake.facts["mig_compute_modes"] = 0
    with pytest.raises(HardwareError, match="MIG devices have none of their own") as refused:
        hardware.set_compute_mode(first, ComputeMode.DEFAULT, SOON)
    assert (refused.value.code, refused.value.retry) == ("hardware.compute-mode-unsupported", Retry.NEVER)


def limits_of(machine: Machine) -> dict[str, int]:
    return machine.state.read().gpus[0].memory_limits()


def test_a_cgroup_s_memory_is_limited_and_freed_by_newer_drivers(machine: Machine, tmp_path: Path) -> None:
    (fake,) = machine.add(h100("0000:65:00.0", 0))
    fake.facts["memory_limits"] = 1
    machine.write()
    hardware, gpu = discovered(machine)
    assert gpu.limits_memory
    assert isinstance(hardware, MemoryLimiting)
    pod = tmp_path / "pod"
    pod.mkdir()
    hardware.limit_memory(shared(gpu), str(pod), 10 << 30, SOON)
    assert limits_of(machine) == {str(pod): 10 << 30}
    hardware.limit_memory(shared(gpu), str(pod), 6 << 30, SOON)
    assert limits_of(machine) == {str(pod): 6 << 30}
    hardware.limit_memory(shared(gpu), str(pod), None, SOON)
    assert limits_of(machine) == {}
    hardware.limit_memory(shared(gpu), str(tmp_path / "gone"), None, SOON)


@pytest.mark.parametrize(
    ("content", "folder"),
    [
        ("", "fs/cgroup"),
        ("0::/\n", "fs/cgroup"),
        ("12:memory:/x\n0::/kubepods.slice/pod.slice/agent.scope\n", "fs/cgroup/kubepods.slice/pod.slice/agent.scope"),
    ],
)
def test_our_own_cgroup_is_read_from_procfs(tmp_path: Path, content: str, folder: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(content)
    roots = Roots(sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    assert sysfs.own_cgroup(roots) == str(tmp_path / "sys" / folder)


def test_older_drivers_and_gpus_in_mig_mode_limit_no_cgroup(machine: Machine, tmp_path: Path) -> None:
    old, partitioned = machine.add(h100("0000:65:00.0", 0), h100("0000:66:00.0", 1))
    partitioned.facts["memory_limits"] = 1
    partitioned.partition("1g.10gb", 0)
    machine.write()
    hardware = machine.hardware()
    facts = hardware.discover()
    assert [gpu.limits_memory for gpu in facts.gpus] == [False, False]
    assert facts.problems == ()
    for gpu, fake in zip(facts.gpus, (old, partitioned), strict=True):
        with pytest.raises(HardwareError, match="release 615") as refused:
            hardware.limit_memory(shared(gpu), str(tmp_path), 1 << 30, SOON)
        assert (refused.value.code, refused.value.retry) == ("hardware.memory-limit-unsupported", Retry.NEVER), fake


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.NO_PERMISSION, "hardware.no-permission"),
        (Code.GPU_IS_LOST, "hardware.gpu-lost"),
        (Code.UNKNOWN, "hardware.memory-limit-failed"),
    ],
)
def test_a_memory_limit_that_is_refused_has_a_code(machine: Machine, tmp_path: Path, code: Code, expected: str) -> None:
    (fake,) = machine.add(h100("0000:65:00.0", 0))
    fake.facts["memory_limits"] = 1
    machine.write()
    hardware, gpu = discovered(machine)
    with machine.state.change():
        fake.faults["nvmlDeviceSetMemoryLimits_v1"] = code
    with pytest.raises(HardwareError) as refused:
        hardware.limit_memory(shared(gpu), str(tmp_path), 1 << 30, SOON)
    assert refused.value.code == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.NO_PERMISSION, "hardware.no-permission"),
        (Code.NOT_SUPPORTED, "hardware.compute-mode-unsupported"),
        (Code.UNKNOWN, "hardware.compute-mode-failed"),
        (Code.GPU_IS_LOST, "hardware.gpu-lost"),
    ],
)
def test_a_compute_mode_that_the_driver_refuses_has_a_code(machine: Machine, code: Code, expected: str) -> None:
    (fake,) = machine.add(h100("0000:65:00.0", 0))
    hardware, gpu = discovered(machine)
    fake.fail("nvmlDeviceSetComputeMode", code)
    machine.write()
    with pytest.raises(HardwareError) as refused:
        hardware.set_compute_mode(shared(gpu), ComputeMode.EXCLUSIVE_PROCESS, SOON)
    assert refused.value.code == expected


GPU = NvidiaGpu("GPU-11111111-2222-3333-4444-555555555555", "0000:65:00.0", 0, 1 << 30)


@pytest.fixture
def smi(tmp_path: Path) -> FakeNvidiaSmi:
    return FakeNvidiaSmi(tmp_path / "driver")


def vendor(smi: FakeNvidiaSmi) -> NvidiaHardware:
    return NvidiaHardware(Roots(driver="/run/nvidia/driver", driver_mount=str(smi.root)))


def test_a_change_of_the_time_slice_is_one_child_process_with_the_uuid(smi: FakeNvidiaSmi) -> None:
    vendor(smi).set_time_slice(shared(GPU), Interval.LONG, SOON)
    assert smi.calls() == [["compute-policy", "-i", GPU.uuid, "--set-timeslice", "3"]]
    assert vendor(smi).time_slice(shared(GPU), SOON) is Interval.LONG


def test_a_driver_root_gives_its_own_library_to_its_program(smi: FakeNvidiaSmi) -> None:
    library = smi.root / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    vendor(smi).set_time_slice(shared(GPU), Interval.SHORT, SOON)
    assert smi.preloaded() == [str(library)]


def test_a_driver_on_the_host_has_its_program_on_the_path(smi: FakeNvidiaSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{smi.path.parent}:{os.environ['PATH']}")
    NvidiaHardware(Roots()).set_time_slice(shared(GPU), Interval.SHORT, SOON)
    assert smi.sets() == [(GPU.uuid, 1)]


@pytest.mark.parametrize("status", [0, 3])
def test_a_gpu_without_time_slices_is_an_error_whatever_the_exit_status(smi: FakeNvidiaSmi, status: int) -> None:
    smi.refuse(f"Unable to set timeslice for GPU {GPU.uuid}: Not Supported", status)
    with pytest.raises(HardwareError, match="Not Supported") as refused:
        vendor(smi).set_time_slice(shared(GPU), Interval.LONG, SOON)
    assert (refused.value.code, refused.value.retry) == ("hardware.time-slice-unsupported", Retry.NEVER)
    assert vendor(smi).time_slice(shared(GPU), SOON) is None


def test_other_refusals_keep_the_words_of_the_program(smi: FakeNvidiaSmi) -> None:
    smi.refuse("Insufficient Permissions", 4)
    with pytest.raises(HardwareError, match="Insufficient Permissions") as refused:
        vendor(smi).set_time_slice(shared(GPU), Interval.LONG, SOON)
    assert refused.value.code == "hardware.no-permission"
    smi.refuse("Failed to initialize NVML: Unknown Error", 255)
    with pytest.raises(HardwareError, match="exit status 255") as refused:
        vendor(smi).set_time_slice(shared(GPU), Interval.LONG, SOON)
    assert (refused.value.code, refused.value.retry) == ("hardware.nvidia-smi-failed", Retry.LATER)


def test_a_program_that_hangs_is_ended_at_the_deadline(smi: FakeNvidiaSmi) -> None:
    smi.hang()
    with pytest.raises(HardwareError, match="did not end") as refused:
        vendor(smi).set_time_slice(shared(GPU), Interval.LONG, 0.3)
    assert (refused.value.code, refused.value.retry) == ("hardware.not-answering", Retry.LATER)


def test_a_program_that_no_signal_reaches_is_left_behind(smi: FakeNvidiaSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: set[int] = set()  # as where it hangs in the kernel: the signal has no effect
    smi.hang()
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, _: signalled.add(group))
        patch.setattr(subprocess.Popen, "kill", lambda child: signalled.add(child.pid))
        try:
            with pytest.raises(HardwareError, match="did not end"):
                unhindered(lambda: vendor(smi).set_time_slice(shared(GPU), Interval.LONG, 0.3))
        finally:
            for pid in signalled:
                os.kill(pid, signal.SIGKILL)
    assert len(signalled) == 1


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="nvidia-smi was not found below") as refused:
        NvidiaHardware(Roots(driver_mount=str(tmp_path))).set_time_slice(shared(GPU), Interval.LONG, SOON)
    assert refused.value.code == "hardware.nvidia-smi-missing"


def test_the_program_s_output_is_read_in_each_form_that_drivers_print(smi: FakeNvidiaSmi) -> None:
    for text, expected in (
        ("| GPU 0: Timeslice   Short |", Interval.SHORT),
        ("Time-slice: DEFAULT", Interval.DEFAULT),
        ("GPU 0 has no policy", None),
    ):
        smi.say(text)
        assert vendor(smi).time_slice(shared(GPU), SOON) is expected
