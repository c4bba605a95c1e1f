"""The code for NVIDIA fulfils the contract of a vendor."""

import shutil

import pytest

from dra_driver.hardware.port import Roots
from tests.hardware.nvidia.conftest import Machine
from tests.support.fake_nvml.machines import h100
from tests.support.vendor_contract import VendorContract


class NvidiaBench:
    vendor = "nvidia"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def roots(self) -> Roots:
        return self.machine.node.roots

    def lay_out(self, count: int) -> None:
        for gpu in self.machine.state.gpus:
            self.machine.node.remove_gpu(gpu.pci, gpu.minor)
        self.machine.state.gpus.clear()
        if not count:  # what is left of a driver may mean GPUs that the bus does not show
            self.machine.node.unload_driver()
            shutil.rmtree(self.machine.folder / "lib")
            shutil.rmtree(self.machine.node.folder / "dev")
        self.machine.add(*(h100(f"0000:6{n}:00.0", n) for n in range(count)))

    def lose_node(self) -> None:
        (self.machine.node.folder / "dev/nvidia0").unlink()


class TestNvidia(VendorContract):
    @pytest.fixture
    def bench(self, machine: Machine) -> NvidiaBench:
        return NvidiaBench(machine)
