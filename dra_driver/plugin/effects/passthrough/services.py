"""The services, besides the kernel, that are needed to hand a GPU to a virtual machine.

One releases the vendor's library; the other withholds a returned GPU until it has been checked.
"""

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
        """Return a context in which this process has no GPU open; calls about GPUs wait for its end.

        Raises: HardwareError("hardware.library-busy", LATER).
        """


class ReturningGpus(Protocol):
    """GPUs returned by virtual machines. They are withheld until they have been identified and tested."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Withhold a GPU from now on, and switch its persistence mode on again, if needed, once it is back.

        `identity` is that of the GPU's function before the virtual machine had it.
        """

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Wait until a GPU is no longer withheld.

        Raises: HardwareError("hardware.not-checked", LATER) if that takes longer, or if the check has failed.
        """


class NothingToRelease:
    """The pause of a library that has no GPU open."""

    def released(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context in which nothing happens."""
        del deadline
        return nullcontext()


class NoneReturning:
    """The returning GPUs of a node where none is withheld."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Do nothing."""

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class PassthroughServices:
    """The access to a node's PCI bus, the pause of its vendor's library, and its returning GPUs."""

    access: BusAccess = field(default_factory=lambda: BusAccess(Roots(), ChildWriter()))
    library: LibraryPause = field(default_factory=NothingToRelease)
    returning: ReturningGpus = field(default_factory=NoneReturning)
