"""AllocatedClaim: what the scheduler allocated to this driver by one claim, as values.

`decoding` makes them from the API server's claim, and `records` from what the ledger has recorded.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters), KEP-4816 (sub-requests).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.claims.config.device_config import DeviceConfig


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result: a device for a request. `request` may be `name/subrequest`; the kubelet gets `base_request`.

    `consumed` is how much this result takes of the capacities of a device with a `share_id`, as quantities by name.
    `device_class` is the class of the request ("" where it is not known).
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    is_admin: bool = False
    consumed: tuple[tuple[str, str], ...] = ()
    device_class: str = field(default="", compare=False)

    @property
    def base_request(self) -> str:
        """The request's name without the chosen alternative, which the kubelet compares with the pod."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config for this driver; without `requests` it applies to all devices of its type.

    `is_class` says that it comes from a device class, not from the claim (ledgers of older agents do not record it).
    """

    config: DeviceConfig
    requests: tuple[str, ...] = ()
    is_class: bool = field(default=False, compare=False)

    def names(self, device: AllocatedDevice) -> bool:
        """Return whether the entry names this device's request, in full or by its base name."""
        return device.request in self.requests or device.base_request in self.requests


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """The part of a claim that concerns this driver. `configs` are sorted so that later ones win.

    `pods` are the UIDs of the pods for which the claim is reserved, and `pod_names` their names by UID.
    `pod_claim_name` is the entry of the pod's `resourceClaims` for which the claim was made from a template, else "".
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[ConfigEntry, ...] = ()
    pods: tuple[str, ...] = ()
    pod_names: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    pod_claim_name: str = field(default="", compare=False)

    def is_same_allocation(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices were allocated for the same requests with the same configs."""
        return (self.devices, self.configs) == (other.devices, other.configs)

    def is_of_same_devices(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices and shares were allocated, even if for other requests."""
        mine, others = ({(d.device, d.share_id) for d in claim.devices} for claim in (self, other))
        return mine == others
