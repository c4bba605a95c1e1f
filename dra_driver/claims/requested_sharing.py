"""The sharing that each result of a claim requests for its device, and how faults in it are reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.claims.allocated import AllocatedDevice
from dra_driver.claims.device_config import ConfigFault
from dra_driver.model.sharing import ClientLimits, SharingSettings


@dataclass(frozen=True, slots=True)
class RequestedSharing:
    """What one result requests: settings for its device, and limits of its own."""

    result: AllocatedDevice
    settings: SharingSettings | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)
    faults: tuple[ConfigFault, ...] = ()


def fault_of(result: AllocatedDevice, message: str) -> ConfigFault:
    """Return a fault in the config for a result's request."""
    return ConfigFault(f"config for request {result.request}", message)
