"""A machine with partitioned GPUs, and the library calls that are made for them."""

import pytest

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.facts import MigProfile, PartitionFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from tests.hardware.nvidia.conftest import Machine
from tests.support.fake_nvml import Gpu, h100

PCI = "0000:65:00.0"


class Bench:
    """A machine with one GPU (by default an H100 in MIG mode), and the vendor that has read it."""

    def __init__(self, machine: Machine, *gpus: Gpu, mig: bool = True, **options: float) -> None:
        self.machine = machine
        self.gpus = list(gpus) or [h100(PCI, 0)]
        for gpu in self.gpus:
            gpu.set_mig(mig)
        machine.add(*self.gpus)
        self.hardware = machine.hardware(**options)
        self.found = self.hardware.discover().gpus

    @property
    def gpu(self) -> NvidiaGpu:
        return self.found[0]

    def profile(self, name: str) -> MigProfile:
        return next(profile for profile in self.gpu.mig_profiles if profile.name == name)

    def create(self, name: str, start: int, *, index: int = 0, deadline_s: float = 10) -> PartitionFacts:
        return self.hardware.create_partition(self.found[index], self.profile(name), start, deadline_s).facts

    def destroy(self, partition: PartitionFacts, deadline_s: float = 10, *, switches_off: bool = False) -> bool:
        placement = (partition.gi_profile_id, partition.start)
        return self.hardware.destroy_partition(
            self.gpu, partition.uuid, deadline_s, placement=placement, switches_off=switches_off
        )

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
