"""Fault: one thing that is wrong with a GPU or one of its partitions, and since when.

Keys are names without the driver's domain; as a taint, `xid` becomes `gpu.nvidia.com/xid`. `xid`, `gpu-lost` and
`unmonitored` are the keys of NVIDIA's own DRA driver, with its values, so that tolerations written for it work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FaultKey(enum.StrEnum):
    """The dimensions of a GPU's health, in order of importance. A device has at most one fault of each."""

    GPU_LOST = "gpu-lost"
    NEEDS_REBOOT = "needs-reboot"
    NEEDS_RESET = "needs-reset"
    NEEDS_ATTENTION = "needs-attention"
    CORDONED = "cordoned"
    REMEDIATION = "remediation"
    NOT_ANSWERING = "not-answering"
    XID = "xid"
    ECC_UNCORRECTABLE = "ecc-uncorrectable"
    ECC_THRESHOLD = "ecc-threshold"
    ROW_REMAP_FAILED = "row-remap-failed"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    UNVALIDATED = "unvalidated"
    ROW_REMAP_PENDING = "row-remap-pending"
    THERMAL = "thermal"
    THROTTLED = "throttled"
    PCIE = "pcie"
    UNMONITORED = "unmonitored"

    @property
    def rank(self) -> int:
        """Return the position in the order of importance; 0 is the most important."""
        return list(FaultKey).index(self)


STICKY = frozenset([FaultKey.ECC_THRESHOLD, FaultKey.ROW_REMAP_FAILED])
"""Faults of the hardware itself, which neither a reset nor a reboot ends."""

SENTENCES = {
    FaultKey.GPU_LOST: "the GPU is lost: it does not answer on the bus; reboot the machine",
    FaultKey.NEEDS_REBOOT: "the driver asks for a reboot of the machine",
    FaultKey.NEEDS_RESET: "the driver asks for a reset of the GPU once no pod uses it",
    FaultKey.NEEDS_ATTENTION: "the driver reports an error that a person has to look at",
    FaultKey.CORDONED: "an administrator took the device out of use",
    FaultKey.REMEDIATION: "the GPU is being repaired, or waits for a person; no new claim gets it",
    FaultKey.NOT_ANSWERING: "a call of the driver's library about this GPU does not return",
    FaultKey.XID: "the driver reported an Xid error that a new process does not cure",
    FaultKey.ECC_UNCORRECTABLE: "the GPU's memory had uncorrectable errors",
    FaultKey.ECC_THRESHOLD: "the GPU's SRAM had more errors than NVIDIA allows: have the card replaced",
    FaultKey.ROW_REMAP_FAILED: "a row of the GPU's memory could not be remapped: have the card replaced",
    FaultKey.NVLINK: "an NVLink that was up is down",
    FaultKey.FABRIC: "the NVLink fabric reports that the GPU is unhealthy",
    FaultKey.UNVALIDATED: "a test of the device failed; dra-driver validate tests it again",
    FaultKey.ROW_REMAP_PENDING: "a row of the GPU's memory will be remapped at the next reset",
    FaultKey.THERMAL: "the GPU is so hot that it slows down",
    FaultKey.THROTTLED: "the hardware slows the GPU down",
    FaultKey.PCIE: "the GPU's PCIe link repeats more packets than is usual",
    FaultKey.UNMONITORED: "the GPU's health is not known, because the driver's library does not answer",
}
"""What each key means, in one sentence that stays the same while the fault lasts."""

DRIVER_RESET, RESET_FAILED, UNKNOWN = "driver-reset", "reset-failed", "unknown"
_SENTENCES_OF_VALUES = {
    DRIVER_RESET: "the kernel driver reset the GPU: programs have lost their data on it, and have to start again",
    UNKNOWN: "what the agent knew of the GPU before its restart can't be read; until it can, no new claim gets the GPU",
    RESET_FAILED: "the kernel driver could not reset the GPU: reboot the machine",
}


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """The subject of a fault: a GPU by PCI address, or one of its partitions by profile and first memory slice."""

    gpu: str
    partition: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times are seconds since 1970; `boot` is the id of the boot in which it was last seen.

    `since` never changes while the fault lasts. `is_mild` is true if the driver reports that no action is needed.
    """

    key: FaultKey
    subject: Subject
    value: str
    since: float
    last_seen: float
    count: int = 1
    boot: str = ""
    is_flapping: bool = False
    is_mild: bool = False

    @property
    def sentence(self) -> str:
        """A sentence about what is wrong, which stays the same for as long as the fault lasts."""
        value = f" ({self.value})" if self.value else ""
        sentence = _SENTENCES_OF_VALUES.get(self.value) or SENTENCES[self.key]
        flapping = "; it comes and goes" if self.is_flapping else ""
        return f"{self.key}{value}: {sentence}{flapping}"
