"""AllocatedClaim: what the scheduler allocated to this driver, out of a ResourceClaim as the API server sends it.

Results and configs of other drivers are ignored. Configs stand in the order in which later ones win.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters), KEP-4816 (sub-requests).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.claims.config import ConfigFault, DeviceConfig, decode_config, read_config, refuse
from dra_driver.claims.shape import check_shape
from dra_driver.model.errors import ClaimError, Retry
from dra_driver.model.wire import ClaimWire, Wire

_FROM_CLASS = "FromClass"
_PRECEDENCE = {_FROM_CLASS: 0, "FromClaim": 1}


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result: a device for a request. `request` may be `name/subrequest`; the kubelet is told `base_request`.

    `consumed` is how much of the capacities of a device with a `share_id` this result takes, as quantities by name.
    """

    request: str
    pool: str
    device: str
    share_id: str | None = None
    is_admin: bool = False
    consumed: tuple[tuple[str, str], ...] = ()

    @property
    def base_request(self) -> str:
        """Return the request's name without the chosen alternative: what the kubelet compares with the pod."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of ours; no `requests` means all devices of the config's type.

    `is_class` says that a device class gave it, not the claim (ledgers of older agents don't tell).
    """

    config: DeviceConfig
    requests: tuple[str, ...] = ()
    is_class: bool = field(default=False, compare=False)

    def names(self, device: AllocatedDevice) -> bool:
        """Return whether the entry names this device's request, in full or by its base name."""
        return device.request in self.requests or device.base_request in self.requests


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim as far as this driver is concerned. `configs` in the order in which later ones win.

    `pods` are the UIDs of the pods that it is reserved for.
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[ConfigEntry, ...] = ()
    pods: tuple[str, ...] = ()

    def record(self) -> Wire:
        """Return what was allocated as JSON for the ledger (the claim's own names have columns of their own)."""
        return {
            "devices": [_device_record(d) for d in self.devices],
            "configs": [_config_record(entry) for entry in self.configs],
            **({"pods": list(self.pods)} if self.pods else {}),
        }

    def is_same_allocation(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices were allocated for the same requests with the same configs."""
        return (self.devices, self.configs) == (other.devices, other.configs)

    def is_of_same_devices(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices and shares were allocated, for whatever requests."""
        mine, others = ({(d.device, d.share_id) for d in claim.devices} for claim in (self, other))
        return mine == others


def decode_claim(claim_wire: ClaimWire, *, driver: str, uid: str) -> AllocatedClaim:
    """Read our part of an allocated claim.

    Raises: ClaimError: "claim.malformed" (no Kubernetes stores that), "claim.uid-mismatch" (another claim took the
    name), "claim.not-allocated", "claim.not-ours" (no device of this driver), "claim.bad-config" and
    "claim.config-not-supported" with the path of the fields at fault.
    """
    check_shape(claim_wire, driver)
    metadata = claim_wire.get("metadata") or {}
    full_name = f"claim {metadata.get('namespace', '')}/{metadata.get('name', '')}"
    if metadata.get("uid") != uid:
        raise ClaimError("uid-mismatch", f"{full_name} has UID {metadata.get('uid')!r}, the kubelet asked for {uid!r}")
    allocation = (claim_wire.get("status") or {}).get("allocation")
    if not allocation:
        raise ClaimError("not-allocated", f"{full_name} is not allocated", retry=Retry.LATER)
    wire = allocation.get("devices") or {}
    devices = tuple(_decode_result(r) for r in wire.get("results") or () if r.get("driver") == driver)
    if not devices:
        raise ClaimError("not-ours", f"{full_name} has no device of driver {driver} in its allocation")
    return AllocatedClaim(
        uid=uid,
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        devices=devices,
        configs=_decode_configs(wire.get("config") or (), driver, full_name),
        pods=pods_of(claim_wire),
    )


def claim_of_record(uid: str, namespace: str, name: str, record: Mapping[str, Any]) -> AllocatedClaim:
    """Return back the claim that `record()` was made of; keys that a newer agent added are ignored."""
    return AllocatedClaim(
        uid=uid,
        namespace=namespace,
        name=name,
        devices=tuple(
            AllocatedDevice(
                request=d["request"],
                pool=d["pool"],
                device=d["device"],
                share_id=d.get("shareID"),
                is_admin=bool(d.get("adminAccess")),
                consumed=_consumed(d.get("consumedCapacity")),
            )
            for d in record["devices"]
        ),
        configs=tuple(
            ConfigEntry(decode_config(c["parameters"]), tuple(c["requests"]), c.get("source") == _FROM_CLASS)
            for c in record["configs"]
        ),
        pods=tuple(record.get("pods") or ()),
    )


def _decode_result(result: Wire) -> AllocatedDevice:
    return AllocatedDevice(
        request=result["request"],
        pool=result["pool"],
        device=result["device"],
        share_id=result.get("shareID") or None,
        is_admin=bool(result.get("adminAccess")),
        consumed=_consumed(result.get("consumedCapacity")),
    )


def pods_of(claim_wire: ClaimWire) -> tuple[str, ...]:
    """Return the UIDs of the pods that a claim, of a shape that was checked, is reserved for."""
    consumers = (claim_wire.get("status") or {}).get("reservedFor") or ()
    return tuple(c["uid"] for c in consumers if c.get("resource") == "pods" and c.get("uid"))


def _consumed(amounts: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(amount)) for name, amount in (amounts or {}).items()))


def _decode_configs(entries: Any, driver: str, full_name: str) -> tuple[ConfigEntry, ...]:
    """Decode our entries, class before claim; every fault of every entry at once."""
    faults: list[ConfigFault] = []
    decoded: list[tuple[int, ConfigEntry]] = []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        path = f"status.allocation.devices.config[{index}].opaque.parameters"
        config = read_config(opaque.get("parameters"), path, faults)
        if config is not None:
            source = entry.get("source", "")
            rank = _PRECEDENCE.get(source, len(_PRECEDENCE))
            decoded.append((rank, ConfigEntry(config, tuple(entry.get("requests") or ()), source == _FROM_CLASS)))
    refuse(faults, full_name)
    return tuple(entry for _, entry in sorted(decoded, key=lambda ranked: ranked[0]))


def _device_record(device: AllocatedDevice) -> Wire:
    record: Wire = {"request": device.request, "pool": device.pool, "device": device.device}
    if device.share_id:
        record["shareID"] = device.share_id
    if device.is_admin:
        record["adminAccess"] = True
    if device.consumed:
        record["consumedCapacity"] = dict(device.consumed)
    return record


def _config_record(entry: ConfigEntry) -> Wire:
    record: Wire = {"requests": list(entry.requests), "parameters": entry.config.record()}
    return {**record, "source": _FROM_CLASS} if entry.is_class else record
