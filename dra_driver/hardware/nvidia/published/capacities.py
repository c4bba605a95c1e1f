"""The table of every capacity of NVIDIA's devices."""

from __future__ import annotations

from dra_driver.hardware.published import values
from dra_driver.hardware.published.rows import (
    ALL,
    COMPUTE,
    MEMORY,
    MEMORY_SLICE,
    MIG,
    PASSED,
    SHARE,
    Owner,
    Published,
    ValueKind,
)
from dra_driver.hardware.published.shares import SHARES_LEFT
from dra_driver.model.shares import DeviceType

CAPACITIES: tuple[Published, ...] = (
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory of the device, or a replica's part of it. Absent on GPUs that share the host's memory and report none.",
        ALL,
        values.memory,
        unit="bytes",
    ),
    SHARES_LEFT,
    Published(
        COMPUTE,
        ValueKind.QUANTITY,
        "Percent of the multiprocessors; a share takes as many as its claim requests.",
        SHARE,
        lambda _: None,
        unit="percent",
        owner=Owner.OURS,
    ),
    Published(
        "multiprocessors", ValueKind.QUANTITY, "Streaming multiprocessors.", MIG, values.of_partition("multiprocessors")
    ),
    Published("copyEngines", ValueKind.QUANTITY, "Copy engines.", MIG, values.of_partition("copy_engines")),
    Published("decoders", ValueKind.QUANTITY, "Video decoders.", MIG, values.of_partition("decoders")),
    Published("encoders", ValueKind.QUANTITY, "Video encoders.", MIG, values.of_partition("encoders")),
    Published("jpegEngines", ValueKind.QUANTITY, "JPEG engines.", MIG, values.of_partition("jpeg_engines")),
    Published("ofaEngines", ValueKind.QUANTITY, "Optical flow accelerators.", MIG, values.of_partition("ofa_engines")),
    *(row for row in PASSED if row.kind is ValueKind.QUANTITY),
)

MEMORY_SLICES = Published(
    MEMORY_SLICE + "<i>",
    ValueKind.QUANTITY,
    "1 for each memory slice `i` of the GPU that the partition covers, counted from 0.",
    (DeviceType.MIG,),
    lambda _: 1,
)
