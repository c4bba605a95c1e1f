"""What is known of an AMD GPU or of one of its partitions, beside what every GPU has."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts


@dataclass(frozen=True, slots=True)
class AmdGpu(GpuFacts):
    """One AMD GPU, or one partition of it (`part` is set then). Counts are those of this device alone.

    `minor` is that of the render node, -1 where it has none. `uuid` identifies the device within this node and is
    published nowhere; `unique_id` is the hardware's own, in hexadecimal, None where the hardware has none (most APUs).
    `compute_mode` and `memory_mode` are those of the GPU ("CPX", "NPS4"), None where it can't be partitioned.
    `render_minors` are those of all render nodes that a container needs: several for a whole GPU that is partitioned.
    """

    unique_id: str | None = None
    device_id: int | None = None
    architecture_target: str | None = None  # "gfx942"
    compute_units: int | None = None
    simd_units: int | None = None
    compute_mode: str | None = None
    memory_mode: str | None = None
    driver_version: str | None = None  # as the driver spells it
    hive: str | None = None  # GPUs of one XGMI hive have the same, in hexadecimal
    is_integrated: bool | None = None  # whether it uses the host's memory; None where neither is certain
    render_minors: tuple[int, ...] = ()
    cards: tuple[str, ...] = ()  # "card1"
