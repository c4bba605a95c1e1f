"""The facts of an AMD GPU or of one of its partitions, in addition to those of every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.vendors import registered_as

AMD = registered_as("amd")
DRIVERS = ("amdgpu",)  # of the kernel


@dataclass(frozen=True, slots=True)
class AmdGpu(GpuFacts):
    """One AMD GPU, or one partition of it (`part` is set then). Counts are those of this device only.

    `minor` is that of the render node, -1 if there is none. `uuid` identifies the device within this node and is
    published nowhere; `unique_id` is the hardware's own, in hexadecimal, None if the hardware has none (most APUs).
    `compute_mode` and `memory_mode` are those of the GPU ("CPX", "NPS4"), None if it can't be partitioned. `nodes`
    are those that a container needs: several render nodes for a whole GPU that is partitioned. `link_domain` is the
    XGMI hive, in hexadecimal.
    """

    vendor: ClassVar[str] = "amd"

    unique_id: str | None = None
    device_id: int | None = None
    architecture_target: str | None = None  # "gfx942"
    compute_units: int | None = None
    simd_units: int | None = None
    compute_mode: str | None = None
    memory_mode: str | None = None
    is_integrated: bool | None = None  # whether it uses the host's memory; None if that is not certain
