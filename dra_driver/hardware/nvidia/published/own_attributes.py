"""The attributes of our own that are published by rank, while the API's limit of 32 values leaves room."""

from __future__ import annotations

from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.nvidia.published.family import family
from dra_driver.hardware.published.rows import (
    ALL,
    GPU,
    Owner,
    Published,
    ValueKind,
)
from dra_driver.hardware.published.values import of_gpu
from dra_driver.model.names import label_product

OWN_ATTRIBUTES: tuple[Published, ...] = (
    Published(
        "nvlinkDomain",
        ValueKind.STRING,
        "GPUs with the same value reach each other over NVLink. It is the `<clusterUUID>.<cliqueId>` of the fabric, or "
        "else an id of the connected group in this node. Absent without links.",
        ALL,
        lambda f: f.gpu.link_domain,
        owner=Owner.OURS,
        rank=1,
    ),
    Published(
        "numaNode",
        ValueKind.INT,
        "The same as the standard attribute, for clusters whose selectors use the driver's own domain.",
        ALL,
        lambda f: f.gpu.numa_node,
        owner=Owner.OURS,
        rank=2,
    ),
    Published(
        "nvlinkCount",
        ValueKind.INT,
        "NVLinks that are up. Absent on cards without NVLink.",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.nvlink_count),
        unit="links",
        owner=Owner.OURS,
        rank=3,
    ),
    Published(
        "migCapable",
        ValueKind.BOOL,
        "Whether the GPU can be partitioned with MIG (not whether it is partitioned).",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.mig_capable),
        owner=Owner.OURS,
        rank=4,
    ),
    Published(
        "eccEnabled",
        ValueKind.BOOL,
        "Whether the memory has been protected by ECC since the last boot.",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.ecc_enabled),
        owner=Owner.OURS,
        rank=5,
    ),
    Published(
        "serial", ValueKind.STRING, "Serial number of the board.", GPU, lambda f: f.gpu.serial, owner=Owner.OURS, rank=6
    ),
    Published(
        "vbiosVersion",
        ValueKind.STRING,
        "Version of the video BIOS, such as `96.00.A5.00.01` (not a semantic version).",
        GPU,
        lambda f: f.gpu.vbios_version,
        owner=Owner.OURS,
        rank=7,
    ),
    Published(
        "family",
        ValueKind.STRING,
        "Family as GPU feature discovery names it: `ampere`, `ada-lovelace`, `hopper`, `blackwell` …",
        ALL,
        of_gpu(NvidiaGpu, family),
        owner=Owner.OURS,
        rank=8,
    ),
    Published(
        "labelProduct",
        ValueKind.STRING,
        "Product as GPU feature discovery writes it into a node label, such as `NVIDIA-H100-80GB-HBM3`.",
        GPU,
        lambda f: label_product(f.gpu.product_name),
        owner=Owner.OURS,
        rank=9,
    ),
    Published(
        "memoryBandwidth",
        ValueKind.INT,
        "Peak bandwidth of the GPU's memory.",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.memory_bandwidth_bytes_per_s),
        unit="bytes/s",
        owner=Owner.OURS,
        rank=10,
    ),
    Published(
        "powerLimitMax",
        ValueKind.INT,
        "Highest power limit that can be set (not the limit in force).",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.power_limit_max_w),
        unit="W",
        owner=Owner.OURS,
        rank=11,
    ),
    Published(
        "smClockMax",
        ValueKind.INT,
        "Highest clock of the multiprocessors (not the current clock).",
        GPU,
        of_gpu(NvidiaGpu, lambda gpu: gpu.sm_clock_max_mhz),
        unit="MHz",
        owner=Owner.OURS,
        rank=12,
    ),
)
