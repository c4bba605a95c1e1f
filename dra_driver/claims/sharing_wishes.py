"""Wishes: what each result of a claim asks for of the device that it shares, and how faults in them are reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.claims.allocated import AllocatedDevice
from dra_driver.claims.device_config import ConfigFault
from dra_driver.model.sharing import ClientLimits, SharingSettings


@dataclass(frozen=True, slots=True)
class SharingWish:
    """What one result asks for: settings of its device, and limits of its own."""

    result: AllocatedDevice
    settings: SharingSettings | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)
    faults: tuple[ConfigFault, ...] = ()


def fault_of(result: AllocatedDevice, message: str) -> ConfigFault:
    """Return a fault in the config for a result's request."""
    return ConfigFault(f"config for request {result.request}", message)
