"""The processes on a GPU, which are listed before a device whose claim vanished is given to another claim."""

import pytest

from dra_driver.base.errors import HardwareError
from tests.hardware.nvidia.conftest import Machine, by_address
from tests.support.fake_nvml import Code, h100, hgx_h100

WHOLE = 2**32 - 1


def test_compute_graphics_and_mps_processes_are_listed_once_each(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].processes = [
        ("compute", 41, WHOLE, WHOLE, 1 << 20),
        ("graphics", 42, WHOLE, WHOLE, 1 << 20),
        ("graphics", 41, WHOLE, WHOLE, 1 << 20),
        ("mps", 43, WHOLE, WHOLE, 1 << 20),
    ]
    machine.write()
    hardware = machine.hardware()
    busy, idle = hardware.discover().gpus
    assert hardware.processes(busy, None) == (41, 42, 43)
    assert hardware.processes(idle, None) == ()


def test_a_partition_has_its_own_processes(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.partition("1g.10gb", 0)
    gpu.partition("1g.10gb", 1)
    gpu.processes = [("compute", 51, 1, 0, 1 << 20), ("compute", 52, 2, 0, 1 << 20)]
    machine.write()
    hardware = machine.hardware()
    (found,) = hardware.discover().gpus
    assert [hardware.processes(found, p) for p in found.partitions] == [(51,), (52,)]


def test_an_older_library_is_asked_by_the_older_call(machine: Machine) -> None:
    kinds = ("Compute", "Graphics", "MPSCompute")
    machine.install_library(without=tuple(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in kinds))
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.processes = [("compute", 61, WHOLE, WHOLE, 1 << 20)]
    machine.write()
    hardware = machine.hardware()
    assert hardware.processes(hardware.discover().gpus[0], None) == (61,)


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NO_PERMISSION, Code.GPU_IS_LOST])
def test_processes_that_cannot_be_listed_are_an_error(machine: Machine, code: Code) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    (found,) = hardware.discover().gpus
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
    machine.write()
    with pytest.raises(HardwareError) as refused:
        hardware.processes(found, None)
    assert refused.value.code == "hardware.processes-unreadable"


def test_a_gpu_that_lists_no_kind_of_process_is_not_taken_to_have_none(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    (found,) = hardware.discover().gpus
    for kind in ("Compute", "Graphics", "MPSCompute"):
        gpu.fail(f"nvmlDeviceGet{kind}RunningProcesses_v3", Code.NOT_SUPPORTED)
    machine.write()
    with pytest.raises(HardwareError):
        hardware.processes(found, None)


def test_processes_are_not_listed_after_the_library_is_closed(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    (found,) = hardware.discover().gpus
    hardware.close()
    with pytest.raises(HardwareError) as refused:
        hardware.processes(found, None)
    assert refused.value.code == "hardware.gpu-unknown"
    assert by_address(hardware.discover())
