"""Compute mode and time slice of simulated devices: they outlive the agent, not the boot."""

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.base.wire import ComputeMode, Interval, SharedDevice
from dra_driver.hardware.port import Roots, Shareable
from dra_driver.hardware.simulated import SimulatedHardware


def started(tmp_path, boot="one"):
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text(boot)
    roots = Roots(proc=str(tmp_path / "proc"))
    return SimulatedHardware("dgx-h100", roots, node_name="n", state_dir=tmp_path / "state")


def device(hardware, index=0, mig_uuid=None):
    gpu = hardware.discover().gpus[index]
    return SharedDevice(f"gpu-{index}", gpu.uuid, gpu.minor, gpu.pci_address, mig_uuid)


def test_settings_are_read_back_by_the_next_agent_and_gone_after_a_reboot(tmp_path):
    hardware = started(tmp_path)
    assert isinstance(hardware, Shareable)
    first, part, second = device(hardware), device(hardware, 0, "MIG-1"), device(hardware, 1)
    hardware.set_compute_mode(first, ComputeMode.EXCLUSIVE_PROCESS, 1)
    hardware.set_time_slice(first, Interval.LONG, 1)
    again = started(tmp_path)
    assert (again.compute_mode(first, 1), again.time_slice(first, 1)) == (ComputeMode.EXCLUSIVE_PROCESS, Interval.LONG)
    assert again.compute_mode(part, 1) is ComputeMode.DEFAULT
    assert (again.compute_mode(second, 1), again.time_slice(second, 1)) == (ComputeMode.DEFAULT, Interval.DEFAULT)
    rebooted = started(tmp_path, "two")
    assert (rebooted.compute_mode(first, 1), rebooted.time_slice(first, 1)) == (ComputeMode.DEFAULT, Interval.DEFAULT)


def test_the_modes_of_a_missing_gpu_cannot_be_read(tmp_path):
    gone = SharedDevice("gpu-9", "GPU-9", 9, "0000:ff:00.0")
    for ask in ("compute_mode", "time_slice"):
        with pytest.raises(HardwareError) as refused:
            getattr(started(tmp_path), ask)(gone, 1)
        assert refused.value.code == "hardware.gpu-lost"


def test_modes_that_are_all_reset_leave_no_state(tmp_path):
    hardware = started(tmp_path)
    first = device(hardware)
    hardware.set_compute_mode(first, ComputeMode.EXCLUSIVE_PROCESS, 1)
    hardware.set_time_slice(first, Interval.LONG, 1)
    hardware.set_compute_mode(first, ComputeMode.DEFAULT, 1)
    assert started(tmp_path).time_slice(first, 1) is Interval.LONG
    hardware.set_time_slice(first, Interval.DEFAULT, 1)
    assert all(path.stat().st_size == 0 for path in (tmp_path / "state").iterdir())
