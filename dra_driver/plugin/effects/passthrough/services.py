"""What passing on a GPU needs beside the kernel: releasing the library, and withholding GPUs that come back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.hardware.passthrough.identity import PciIdentity
from dra_driver.hardware.passthrough.writing import BusAccess, ChildWriter
from dra_driver.hardware.port import Roots
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.recorded_steps import GpuReference


class LibraryPause(Protocol):
    """Releases the vendor's library for a moment, because it has every GPU open."""

    def released(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Keep this process from having a GPU open while the context lasts; calls about GPUs wait.

        Raises: HardwareError("hardware.library-busy", LATER).
        """


class ReturningGpus(Protocol):
    """GPUs that come back from virtual machines. They are held back until they have been compared and tested."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Hold a GPU back from now on, and switch its persistence mode on again once it is back.

        `identity` is that of its function before the virtual machine had it.
        """

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Wait until a GPU is not held back.

        Raises: HardwareError("hardware.not-checked", LATER) if that takes longer, or if the check has failed.
        """


class NothingToRelease:
    """Stands for a library that has no GPU open."""

    def released(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context in which nothing happens."""
        del deadline
        return nullcontext()


class NoneReturning:
    """Stands for a node where no GPU that comes back is held back."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Do nothing."""

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class PassthroughServices:
    """The bus of a node, its vendor's library, and its GPUs that come back."""

    access: BusAccess = field(default_factory=lambda: BusAccess(Roots(), ChildWriter()))
    library: LibraryPause = field(default_factory=NothingToRelease)
    returning: ReturningGpus = field(default_factory=NoneReturning)
