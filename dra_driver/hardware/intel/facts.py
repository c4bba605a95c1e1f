"""The facts of an Intel GPU, in addition to those of every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.vendors import registered_as

INTEL = registered_as("intel")
DRIVERS = ("i915", "xe")  # of the kernel


@dataclass(frozen=True, slots=True)
class IntelGpu(GpuFacts):
    """One Intel GPU, or a virtual function of one.

    `minor` is that of the render node, -1 if there is none. `uuid` identifies the device within this node and is
    published nowhere. `nodes` are the card and the render node; `admin_nodes` are those of the management engine, which
    only claims with admin access get.
    """

    vendor: ClassVar[str] = "intel"

    device_id: int | None = None
    model: str | None = None  # None if the table has no name for the device id
    family: str | None = None
    kernel_driver: str | None = None
    is_integrated: bool | None = None  # whether it uses the host's memory; None if that is not certain
    is_virtual: bool = False  # a virtual function (SR-IOV)
    physical_address: str | None = None  # of the physical function, for a virtual one
    may_be_divided: bool = False  # whether it has SR-IOV
    admin_nodes: tuple[str, ...] = ()
