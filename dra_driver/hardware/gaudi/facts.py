"""What is known of a Gaudi accelerator, beside what every device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts


@dataclass(frozen=True, slots=True)
class GaudiCard(GpuFacts):
    """One accelerator. `minor` is its number below /dev/accel; `module_id` is the slot on its board.

    `status` is the kernel driver's word, folded to lower case, and "" where it says none. `memory_bytes` is that of the
    model, because no file says it.
    """

    vendor: ClassVar[str] = "gaudi"

    device_id: int | None = None
    model: str | None = None  # None where the table has no name for the device id
    module_id: int | None = None
    verbs: str = ""  # its InfiniBand device, "uverbs3"; "" where the network driver is not loaded
    status: str = ""

    @property
    def is_healthy(self) -> bool | None:
        """Return whether the kernel driver calls it operational, None where it says nothing; other words are no."""
        return self.status == "operational" if self.status else None
