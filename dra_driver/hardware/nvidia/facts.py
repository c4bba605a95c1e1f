"""The facts of an NVIDIA GPU, in addition to those of every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts

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
