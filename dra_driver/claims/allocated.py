"""AllocatedClaim: what the scheduler allocated to this driver, read from a ResourceClaim as the API server sends it.

Results and configs of other drivers are ignored. Configs are sorted so that later ones win.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters), KEP-4816 (sub-requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.claims.config import decode_config, read_config, refuse
from dra_driver.claims.device_config import ConfigFault, DeviceConfig
from dra_driver.claims.shape import check_shape
from dra_driver.model.errors import ClaimError, Retry
from dra_driver.model.names import is_dns_label, is_dns_subdomain
from dra_driver.model.records import Key, RecordForm
from dra_driver.model.wire import ClaimWire, Wire

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"  # annotation of claims that were made from a template
_FROM_CLASS = "FromClass"
_DEVICES, _PODS, _POD_NAMES = "devices", "pods", "podNames"  # keys of a record
_PRECEDENCE = {_FROM_CLASS: 0, "FromClaim": 1}


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

    def record(self) -> Wire:
        """Return the allocation as JSON for the ledger (the claim's UID, namespace and name have their own columns)."""
        return _CLAIM.write(self)

    def is_same_allocation(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices were allocated for the same requests with the same configs."""
        return (self.devices, self.configs) == (other.devices, other.configs)

    def is_of_same_devices(self, other: AllocatedClaim) -> bool:
        """Return whether the same devices and shares were allocated, even if for other requests."""
        mine, others = ({(d.device, d.share_id) for d in claim.devices} for claim in (self, other))
        return mine == others


def decode_claim(claim_wire: ClaimWire, *, driver: str, uid: str) -> AllocatedClaim:
    """Read this driver's part of an allocated claim.

    Args:
        claim_wire: the ResourceClaim as the API server sent it; its shape is checked first.
        driver: the name of this driver.
        uid: the UID that the kubelet asked for.

    Raises: ClaimError: "claim.malformed" (no API server stores such a claim), "claim.uid-mismatch" (another claim has
    taken the name), "claim.not-allocated", "claim.not-ours" (it has no device of this driver), "claim.bad-config" and
    "claim.config-not-supported" with the paths of the fields at fault.
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
    devices = _results(wire, driver, _classes(claim_wire))
    if not devices:
        raise ClaimError("not-ours", f"{full_name} has no device of driver {driver} in its allocation")
    return AllocatedClaim(
        uid=uid,
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        devices=devices,
        configs=_decode_configs(wire.get("config") or (), driver, full_name),
        pods=pods_of(claim_wire),
        pod_names=_pod_names(claim_wire),
        pod_claim_name=_pod_claim_name(metadata),
    )


def claim_of_record(uid: str, namespace: str, name: str, record: Mapping[str, Any]) -> AllocatedClaim:
    """Return the claim from which `record()` made a record; keys that a newer agent added are ignored."""
    return _CLAIM.read(record, uid=uid, namespace=namespace, name=name)


def owned_of_record(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the devices that a recorded claim owns, each with its share id, or "" if it is not a share."""
    parts = record.get(_DEVICES) or ()
    return tuple((part["device"], part.get(_SHARE_ID.name) or "") for part in parts if not part.get(_IS_ADMIN.name))


def names_of_record(record: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the devices of a recorded claim, including those to which it has admin access."""
    return frozenset(part["device"] for part in record.get(_DEVICES) or ())


def devices_of_record(record: Mapping[str, Any]) -> tuple[AllocatedDevice, ...]:
    """Return the devices of a recorded claim. Raises: KeyError for a record that this driver can't have written."""
    return _devices(record.get(_DEVICES) or ())


def pod_names_of_record(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the names, by UID, of the pods for which a recorded claim was reserved."""
    return _pairs(record.get(_POD_NAMES))


def pods_of_record(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the UIDs of the pods for which a recorded claim was reserved."""
    return tuple(map(str, record.get(_PODS) or ()))


def record_with_pods(record: Wire, pods: Iterable[str]) -> Wire:
    """Return the record of a claim with these pods added to those for which it is reserved."""
    return {**record, _PODS: list(dict.fromkeys((*pods_of_record(record), *pods)))}


def pods_of(claim_wire: ClaimWire) -> tuple[str, ...]:
    """Return the UIDs of the pods for which a claim is reserved; the shape of the claim must have been checked."""
    consumers = (claim_wire.get("status") or {}).get("reservedFor") or ()
    return tuple(c["uid"] for c in consumers if c.get("resource") == "pods" and c.get("uid"))


def _pod_names(claim_wire: ClaimWire) -> tuple[tuple[str, str], ...]:
    consumers = (claim_wire.get("status") or {}).get("reservedFor") or ()
    named = ((c.get("uid"), c.get("name")) for c in consumers if c.get("resource") == "pods" and c.get("uid"))
    return tuple((uid, name) for uid, name in named if isinstance(name, str) and is_dns_subdomain(name))


def _pod_claim_name(metadata: Wire) -> str:
    """Return the name in the annotation, or "" if it is not a valid one: any user may annotate a claim."""
    annotations = metadata.get("annotations")
    name = annotations.get(POD_CLAIM_NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) and is_dns_label(name) else ""


def _results(wire: Wire, driver: str, classes: Mapping[str, str]) -> tuple[AllocatedDevice, ...]:
    """Return a driver's devices in an allocation. `classes` are the device classes by request."""
    results = (result for result in wire.get("results") or () if result.get("driver") == driver)
    return tuple(_RESULT.read(result, device_class=classes.get(result["request"], "")) for result in results)


def _classes(claim_wire: ClaimWire) -> dict[str, str]:
    """Return the device class of each request and sub-request, by the name that a result has.

    The specification decides nothing here, so a malformed one only leaves the classes unknown.
    """
    spec = claim_wire.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    found: dict[str, str] = {}
    for request in _mappings(devices, "requests"):
        _record_class(found, str(request.get("name")), request.get("exactly"))
        for choice in _mappings(request, "firstAvailable"):
            _record_class(found, f"{request.get('name')}/{choice.get('name')}", choice)
    return found


def _mappings(value: Any, key: str) -> list[Wire]:
    rows = value.get(key) if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _record_class(found: dict[str, str], request: str, value: Any) -> None:
    name = value.get("deviceClassName") if isinstance(value, dict) else None
    if isinstance(name, str) and is_dns_subdomain(name):
        found[request] = name


def _consumed(amounts: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(amount)) for name, amount in (amounts or {}).items()))


def _decode_configs(entries: Any, driver: str, full_name: str) -> tuple[ConfigEntry, ...]:
    """Decode the configs of this driver, class before claim; the faults of all entries are raised together."""
    faults: list[ConfigFault] = []
    decoded: list[tuple[int, ConfigEntry]] = []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        path = f"status.allocation.devices.config[{index}].opaque.parameters"
        config = read_config(opaque.get("parameters"), path, faults, driver)
        if config is not None:
            source = entry.get("source", "")
            rank = _PRECEDENCE.get(source, len(_PRECEDENCE))
            decoded.append((rank, ConfigEntry(config, tuple(entry.get("requests") or ()), source == _FROM_CLASS)))
    refuse(faults, full_name)
    return tuple(entry for _, entry in sorted(decoded, key=lambda ranked: ranked[0]))


def _pairs(names: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((names or {}).items()))


def _devices(records: Sequence[Wire]) -> tuple[AllocatedDevice, ...]:
    return tuple(map(_DEVICE.read, records))


def _configs(records: Sequence[Wire]) -> tuple[ConfigEntry, ...]:
    return tuple(map(_CONFIG.read, records))


# A device is recorded as the API server has it in the allocation's results, and with its class, which a result lacks.
_SHARE_ID = Key("shareID", read=lambda share_id: share_id or None, left_out=None)
_IS_ADMIN = Key("adminAccess", read=bool, left_out=False)
_CONSUMED = Key("consumedCapacity", write=dict, read=_consumed, left_out=())
_RESULT = RecordForm(
    AllocatedDevice, without=("device_class",), share_id=_SHARE_ID, is_admin=_IS_ADMIN, consumed=_CONSUMED
)
_DEVICE = RecordForm(
    AllocatedDevice,
    share_id=_SHARE_ID,
    is_admin=_IS_ADMIN,
    consumed=_CONSUMED,
    device_class=Key("deviceClass", left_out=""),
)
_CONFIG = RecordForm(
    ConfigEntry,
    config=Key("parameters", DeviceConfig.record, decode_config),
    requests=Key("requests", list, tuple),
    is_class=Key("source", lambda _: _FROM_CLASS, lambda source: source == _FROM_CLASS, left_out=False),
)
_CLAIM = RecordForm(
    AllocatedClaim,
    without=("uid", "namespace", "name"),
    devices=Key(_DEVICES, lambda devices: list(map(_DEVICE.write, devices)), _devices),
    configs=Key("configs", lambda configs: list(map(_CONFIG.write, configs)), _configs),
    pods=Key(_PODS, list, lambda pods: tuple(pods or ()), left_out=()),
    pod_names=Key(_POD_NAMES, dict, _pairs, left_out=()),
    pod_claim_name=Key("podClaimName", left_out=""),
)
