"""The ability to reset GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dra_driver.hardware.facts import GpuFacts


@runtime_checkable
class Resettable(Protocol):
    """Optional ability: reset GPUs that no claim and no other process uses.

    Between `await_return` and the next discovery that follows `close`, calls of the other abilities wait, within their
    deadlines, for the library to be open again. `needs_privilege` is whether a reset takes the rights of root on the
    host.
    """

    needs_privilege: bool

    def await_return(self) -> None:
        """Make calls wait while the library is closed, because it will be opened again soon. Idempotent."""

    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the ids of the processes that have a GPU open, those of this agent included, as far as /proc shows."""

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> bool | None:
        """Return whether a GPU is in persistence mode; None where that is not known. Raises: HardwareError."""

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch persistence mode. Idempotent. Raises: HardwareError."""

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs together; no process may have any of them open. A reset that is repeated is another reset.

        Raises: HardwareError("hardware.reset-failed", retry LATER), ("hardware.nvidia-smi-missing", retry LATER).
        """
