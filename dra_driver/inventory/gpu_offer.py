"""GpuOffer: what one GPU is offered as; each stage of `build` takes one and returns the next.

There is one offer for each PCI address. Where the hardware has divided a GPU, all its parts are in one offer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_driver.inventory.device import Device


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """What one GPU is offered as, in the forms that an `Offering` has for the whole node.

    `hidden` and `waits_for_claims` are as in `Inventory`. With `is_shared`, the GPU is shared as a whole, by a rule or
    because claims hold shares of it.
    """

    devices: tuple[Device, ...] = ()
    plain: tuple[Device, ...] = ()
    instead: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    hidden: tuple[Device, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    waits_for_claims: bool = False
    is_shared: bool = False

    @classmethod
    def combined(cls, offers: Iterable[GpuOffer]) -> GpuOffer:
        """Return the offers of a node's GPUs as one."""
        every = tuple(offers)
        return cls(
            devices=tuple(device for one in every for device in one.devices),
            plain=tuple(device for one in every for device in one.plain),
            instead={name: devices for one in every for name, devices in one.instead.items()},
            hidden=tuple(device for one in every for device in one.hidden),
            counter_sets={name: counters for one in every for name, counters in one.counter_sets.items()},
            waits_for_claims=any(one.waits_for_claims for one in every),
        )
