"""GPUs that can be partitioned, with the slices of their devices."""

from dra_driver.hardware.facts import MigProfile
from tests.support.facts import FULL_GPU

PROFILES = (
    MigProfile("1g.10gb", 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 9984 << 20, 16, 1, 1, 0, 1, 0, 7),
    MigProfile("7g.80gb", 0, 7, 8, (0,), 81152 << 20, 132, 8, 7, 0, 7, 1, 1),
)


def partitionable(index: int):
    from dataclasses import replace

    address = f"0000:{index:02x}:00.0"
    return replace(
        FULL_GPU, pci_address=address, uuid=f"GPU-{index}", mig_profiles=PROFILES, mig_toggles_without_reset=True
    )
