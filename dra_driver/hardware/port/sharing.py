"""The abilities on which sharing depends: compute mode, time slices, limits of memory, compute units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dra_driver.model.edits import Edits
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice


@runtime_checkable
class Shareable(Protocol):
    """Optional ability: read and change the settings of a device on which sharing depends.

    Both settings last for this boot only: a reboot, or a driver that is loaded again, restores the defaults. Every
    method may raise HardwareError, with `hardware.not-answering` when the deadline passed.
    """

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode of a GPU or a MIG device.

        Raises: HardwareError("hardware.compute-mode-unsupported", retry NEVER) where the device has none.
        """

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device. Idempotent.

        Raises: HardwareError("hardware.compute-mode-unsupported"), ("hardware.no-permission"), both retry NEVER.
        """

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return how long the time slices of a GPU are, or None where that is not known.

        Source: nvidia-smi, "Compute Policy".
        """

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long the time slices of a GPU are. Idempotent.

        Raises: HardwareError("hardware.time-slice-unsupported", retry NEVER) for a GPU without that setting.
        """


@runtime_checkable
class MemoryLimiting(Protocol):
    """Optional ability: limit a cgroup's GPU memory, on GPUs whose facts have `limits_memory`."""

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Limit the processes below a cgroup (the path of its folder) to `limit` bytes of a GPU's memory.

        None removes the limit. The limit disappears with the cgroup, and applies to memory that is allocated from now
        on. It is no error if the cgroup is gone. Setting the same limit again is harmless.

        Raises: HardwareError("hardware.memory-limit-unsupported", retry NEVER), ("hardware.no-permission", retry
        NEVER), ("hardware.not-answering"), ("hardware.gpu-lost", retry LATER).
        """


@runtime_checkable
class MemoryLimitShowing(Protocol):
    """Optional ability: show the limits that `MemoryLimiting` set, where something else on the node may end them."""

    def memory_limit(self, device: SharedDevice, cgroup: str) -> int | None:
        """Return the limit of a cgroup in bytes, None where it has none or the cgroup is gone. Reads files alone.

        Raises: HardwareError("hardware.memory-limit-unsupported").
        """


@runtime_checkable
class ComputeUnitChoosing(Protocol):
    """Optional ability: keep a container's programs to some of a GPU's compute units. A program can ignore that."""

    def compute_unit_edits(self, units: Sequence[int]) -> Edits:
        """Return what keeps the programs of a container to these units (from 0) of its only GPU."""
