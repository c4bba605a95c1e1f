"""Evidence: what a vendor observes about the health of its GPUs, frozen and without judgement.

A GPU is named by its PCI address, as in `GpuFacts.pci_address`. Times are in boot time (`model.machine`). None means
that this GPU or this driver does not report the value; it never means that all is well.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

HARDWARE_THERMAL = 0x40  # of `Vitals.clock_reasons`: the hardware throttles its clocks because it is too hot


class Source(enum.StrEnum):
    """Where an observation comes from. Two sources often report the same event."""

    EVENT = "event"  # the library's event set
    KERNEL_LOG = "kernel-log"


@dataclass(frozen=True, slots=True)
class XidReport:
    """One Xid error of a GPU, or of one of its instances where the driver attributes it."""

    gpu: str
    code: int
    at: float
    source: Source
    gi_id: int | None = None
    ci_id: int | None = None


class BusState(enum.StrEnum):
    """What sysfs shows of a GPU's PCI function."""

    HERE = "here"
    GONE = "gone"  # the device no longer has a folder
    DEAD = "dead"  # it has one, but its configuration space reads all ones
    ELSEWHERE = "elsewhere"  # another kernel driver has it, or none: it is absent by intent


class DriverReset(enum.StrEnum):
    """What the kernel driver last logged about a reset of a GPU; it resets a GPU that hangs without being asked."""

    NONE = "none"
    UNDER_WAY = "under-way"
    DONE = "done"  # since the last reading
    FAILED = "failed"
    LOST = "lost"  # it found the GPU gone from the bus


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one round of polling found on one GPU.

    `is_lost` is None if the GPU's answer does not show whether it is lost. `recovery_action` is NVML's number.
    `thermal_margin` and `slowdown_margin` are in degrees Celsius, signed: the GPU slows down where the first falls
    below the second. `clock_reasons` is NVML's bit set. `links` has for each NVLink of the GPU whether it is active.
    `pcie_replays` counts since the driver was loaded. `reset` is None if there is no record of the driver's own resets.
    """

    gpu: str
    at: float
    uuid: str = ""
    is_lost: bool | None = False
    recovery_action: int | None = None
    ecc_uncorrectable: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    thermal_margin: int | None = None
    slowdown_margin: int | None = None
    clock_reasons: int | None = None
    links: tuple[bool, ...] = ()
    fabric_summary: int | None = None
    pcie_replays: int | None = None
    pcie_lanes: int | None = None
    pcie_generation: int | None = None
    reset: DriverReset | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a vendor observed since it was last asked.

    `xids` has each report once; `readings` are the newest of each GPU, and `bus` is what sysfs shows now.
    `is_driver_new` is true once after the kernel driver was loaded again, which ends what earlier Xids meant.
    `silent_s` is for how many seconds the library has been silent (0 while it answers).
    `problem` says which source can't be read, and why.
    """

    xids: tuple[XidReport, ...] = ()
    readings: tuple[Vitals, ...] = ()
    bus: tuple[tuple[str, BusState], ...] = ()
    is_driver_new: bool = False
    silent_s: float = 0.0
    log_position: int = -1  # the sequence number of the last kernel message that was read; -1 for none
    problem: str = ""
