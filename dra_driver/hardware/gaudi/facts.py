"""The facts of a Gaudi accelerator, in addition to those of every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts


@dataclass(frozen=True, slots=True)
class GaudiCard(GpuFacts):
    """One accelerator. `minor` is its number below /dev/accel; `module_id` is the slot on its board.

    `status` is the kernel driver's word in lower case, "" if it reports none. `memory_bytes` is the size that the model
    has, because no file shows the card's own.
    """

    vendor: ClassVar[str] = "gaudi"

    device_id: int | None = None
    model: str | None = None  # None if the table has no name for the device id
    module_id: int | None = None
    verbs: str = ""  # its InfiniBand device, "uverbs3"; "" if the network driver is not loaded
    status: str = ""

    @property
    def is_healthy(self) -> bool | None:
        """Return whether the kernel driver reports `operational`, None if it reports nothing; other words mean no."""
        return self.status == "operational" if self.status else None
