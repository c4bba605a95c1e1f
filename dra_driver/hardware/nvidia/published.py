"""NVIDIA's facts as they are published: the table of every attribute and capacity, and the labels of a node.

In: what a vendor found out about one device. Out: its values by published name; no other code spells such a name. The
names, kinds and values of NVIDIA's driver come first and unchanged, so that device classes and claims written for it
work unchanged; then come our own, by rank, while the API's limit of 32 leaves room. The names that a device type
carries are fixed here, not chosen for each device: an unknown fact is left out, and no other name takes its place.

Never published: anything that changes because a claim was prepared (MIG mode, compute mode, current clocks or limits).
`docs/attributes.md` is generated from these tables.

The labels are those that apply to the whole node, whatever claims do. Where GPUs differ, only what they have in common
becomes a label. How GPUs are shared or partitioned is left to the published devices, because it changes with claims.
Source: NVIDIA/k8s-device-plugin v0.20, GPU feature discovery: families, names and values of labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from dra_driver.base.names import label_product
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import (
    ALL,
    COMPUTE,
    ENFORCEMENT,
    EVERY,
    GPU,
    MEMORY,
    MEMORY_SLICE,
    MIG,
    PART,
    PASSED,
    SHARE,
    SHARE_FORM,
    SHARES_LEFT,
    STANDARD_ATTRIBUTES,
    Owner,
    Published,
    ValueKind,
    device_memory,
    device_uuid,
    of_gpu,
    of_partition,
    sharing_strategy,
)

_RESET_TOGETHER = frozenset(["pascal", "volta", "turing"])  # as in `architecture`, in lower case


@dataclass(frozen=True, slots=True)
class NvidiaGpu(GpuFacts):
    """One GPU as NVML reports it. Versions are strict semver, and names state the units.

    `link_domain` is `<clusterUUID>.<cliqueId>` where a fabric is reported, else a stable id of the connected component
    of NVLink peers. `minor` is that of its device node.
    """

    vendor: ClassVar[str] = "nvidia"

    brand: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None  # "9.0.0"
    addressing_mode: str | None = None  # "ATS", "HMM", "None"
    nvlink_count: int | None = None
    mig_capable: bool | None = None
    ecc_enabled: bool | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    power_limit_max_w: int | None = None
    sm_clock_max_mhz: int | None = None

    @property
    def is_reset_with_peers(self) -> bool:
        """Return whether it is older than Ampere and linked. Source: nvidia-smi(1), --gpu-reset."""
        return self.link_domain is not None and (self.architecture or "").lower() in _RESET_TOGETHER


_FAMILIES = {
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada-lovelace",
    "hopper",
    "blackwell",
    "rubin",
}


def family(gpu: NvidiaGpu) -> str | None:
    """Return the GPU's family as GPU feature discovery names it, or None where it has no name for it.

    Source: label nvidia.com/gpu.family, which is derived from the compute capability; the architecture determines the
    same families and more.
    """
    word = (gpu.architecture or "").lower().replace(" ", "-")
    if word in _FAMILIES:
        return word
    major, _, rest = (gpu.compute_capability or "").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    if int(major) == 7:
        return "volta" if int(minor) < 5 else "turing"
    if int(major) == 8:
        return "ampere" if int(minor) < 9 else "ada-lovelace"
    return {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell"}.get(int(major))


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


ATTRIBUTES: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `gpu` or `mig` for a whole one; `gpu-share` or `mig-share` for one shared with others; "
        "`vfio` for a whole GPU for a virtual machine.",
        EVERY,
        lambda f: f.type.value,
    ),
    Published(
        "uuid",
        ValueKind.STRING,
        "UUID of the GPU (`GPU-…`) or of the partition (`MIG-…`; absent where Prepare creates it); a share has that of "
        "the shared device, and a GPU for a virtual machine one that is derived from its PCI address.",
        EVERY,
        device_uuid,
    ),
    Published(
        "parentUUID",
        ValueKind.STRING,
        "UUID of the GPU that the partition or share belongs to.",
        PART,
        lambda f: f.gpu.uuid,
    ),
    Published("profile", ValueKind.STRING, "MIG profile, such as `1g.10gb`.", MIG, of_partition("profile")),
    Published(
        "productName",
        ValueKind.STRING,
        "Product name as the driver reports it, such as `NVIDIA H100 80GB HBM3`; absent on a GPU for a virtual machine "
        "that no driver of the host has had.",
        EVERY,
        lambda f: f.gpu.product_name,
    ),
    Published(
        "brand",
        ValueKind.STRING,
        "Brand, such as `Nvidia`, `Tesla`, `GeForceRTX`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.brand),
    ),
    Published(
        "architecture",
        ValueKind.STRING,
        "Architecture, such as `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.architecture),
    ),
    Published(
        "cudaComputeCapability",
        ValueKind.VERSION,
        "CUDA compute capability, such as `9.0.0`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.compute_capability),
    ),
    Published(
        "driverVersion", ValueKind.VERSION, "Version of the loaded kernel driver.", ALL, lambda f: f.driver_version
    ),
    Published(
        "cudaDriverVersion",
        ValueKind.VERSION,
        "Newest CUDA version that the driver supports.",
        ALL,
        lambda f: f.runtime_version,
    ),
    Published(
        "addressingMode",
        ValueKind.STRING,
        "How the GPU reaches pageable host memory: `ATS`, `HMM` or `None`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.addressing_mode),
    ),
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    *SHARE_FORM,
    Published(
        "sharingStrategy",
        ValueKind.STRING,
        "How users of the device run side by side: `TimeSlicing`, `MPS`, or `none` where nothing is set up.",
        SHARE,
        sharing_strategy,
        owner=Owner.OURS,
    ),
    Published(
        "tenant",
        ValueKind.STRING,
        "The only namespace whose claims may have the share; absent if all may.",
        SHARE,
        lambda f: (f.share.tenant or None) if f.share else None,
        owner=Owner.OURS,
        since="0.1.1",
    ),
    ENFORCEMENT,
    *(row for row in PASSED if row.kind is not ValueKind.QUANTITY),
    *OWN_ATTRIBUTES,
)


CAPACITIES: tuple[Published, ...] = (
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory of the device, or a replica's part of it. Absent on GPUs that share the host's memory and report none.",
        ALL,
        device_memory,
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
        "multiprocessors",
        ValueKind.QUANTITY,
        "Streaming multiprocessors.",
        MIG,
        of_partition("multiprocessors"),
    ),
    Published("copyEngines", ValueKind.QUANTITY, "Copy engines.", MIG, of_partition("copy_engines")),
    Published("decoders", ValueKind.QUANTITY, "Video decoders.", MIG, of_partition("decoders")),
    Published("encoders", ValueKind.QUANTITY, "Video encoders.", MIG, of_partition("encoders")),
    Published("jpegEngines", ValueKind.QUANTITY, "JPEG engines.", MIG, of_partition("jpeg_engines")),
    Published("ofaEngines", ValueKind.QUANTITY, "Optical flow accelerators.", MIG, of_partition("ofa_engines")),
    *(row for row in PASSED if row.kind is ValueKind.QUANTITY),
)

MEMORY_SLICES = Published(
    MEMORY_SLICE + "<i>",
    ValueKind.QUANTITY,
    "1 for each memory slice `i` of the GPU that the partition covers, counted from 0.",
    (DeviceType.MIG,),
    lambda _: 1,
)


DOMAIN = "nvidia.com"
_CLIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.\d+")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MIB = 1 << 20
_READ_BYTES = 256


def feature_labels(facts: Facts, roots: Roots) -> dict[str, str]:
    """Return the labels of a node with these GPUs; none where no GPU answers."""
    gpus = [gpu for gpu in facts.gpus if isinstance(gpu, NvidiaGpu) and not gpu.is_lost]
    if not gpus:
        return {}
    found = {
        "mig.capable": str(any(gpu.mig_capable for gpu in gpus)).lower(),
        "gpu.product": _common(gpus, lambda gpu: label_product(gpu.product_name)),
        "gpu.memory": _common(gpus, lambda gpu: str(gpu.memory_bytes // _MIB) if gpu.memory_bytes else None),
        "gpu.family": _common(gpus, family),
        "gpu.clique": _common(gpus, _clique),
        "gpu.machine": label_product(_line(Path(roots.sys) / "class/dmi/id/product_name")),
        **_capability(gpus),
        **_driver(_line(Path(roots.sys) / "module/nvidia/version") or facts.driver_version),
        **_runtime(facts.runtime_version),
    }
    if found["gpu.product"]:
        found["gpu.count"] = str(len(gpus))
    good = {name: value for name, value in found.items() if value is not None and _VALUE.fullmatch(value)}
    return {f"{DOMAIN}/{name}": good[name] for name in sorted(good)}


def _common(gpus: Iterable[NvidiaGpu], value_of: Callable[[NvidiaGpu], str | None]) -> str | None:
    """Return the value that all GPUs have, None where they differ or one has none."""
    values = {value_of(gpu) or None for gpu in gpus}
    return values.pop() if len(values) == 1 else None


def _clique(gpu: NvidiaGpu) -> str | None:
    """Return the GPU's clique within a fabric, `<clusterUUID>.<cliqueId>`; other link domains are this node's own."""
    return gpu.link_domain if gpu.link_domain and _CLIQUE.fullmatch(gpu.link_domain) else None


def _capability(gpus: Iterable[NvidiaGpu]) -> Mapping[str, str | None]:
    words = (_common(gpus, lambda gpu: gpu.compute_capability) or "").split(".")
    if len(words) < 2:
        return {}
    return {"gpu.compute.major": words[0], "gpu.compute.minor": words[1]}


def _driver(version: str | None) -> Mapping[str, str | None]:
    """Return the labels of the kernel driver's version, and the older names of the same."""
    if not version:
        return {}
    major, minor, revision = (*version.split("."), "", "")[:3]
    new = {"major": major, "minor": minor, "revision": revision, "full": version}
    old = {"major": major, "minor": minor, "rev": revision}
    return {f"cuda.driver-version.{k}": v for k, v in new.items()} | {f"cuda.driver.{k}": v for k, v in old.items()}


def _runtime(version: str | None) -> Mapping[str, str | None]:
    if not version:
        return {}
    major, minor = (*version.split("."), "")[:2]
    new = {"major": major, "minor": minor, "full": f"{major}.{minor}"}
    old = {"major": major, "minor": minor}
    return {f"cuda.runtime-version.{k}": v for k, v in new.items()} | {f"cuda.runtime.{k}": v for k, v in old.items()}


def _line(path: Path) -> str | None:
    """Return the first line of a file of the kernel, None where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace").partition("\n")[0].strip() or None
    except OSError:
        return None
