"""Reads this driver's part of a ResourceClaim as the API server sends it; what is of other drivers is ignored.

In: the claim's JSON, untrusted until its shape is checked. Out: an `AllocatedClaim`, whose configs are sorted so that
later ones win.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters), KEP-4816 (sub-requests).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import ALLOCATION_RESULTS, POOL_NAME_CHARS, RESERVED_FOR, ClaimError, Retry
from dra_driver.base.names import is_claim_uid, is_dns_label, is_dns_subdomain
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import ClaimWire, Key, RecordForm, Wire
from dra_driver.node.claims.config import decode_config, read_config, refuse
from dra_driver.node.claims.device_config import ConfigFault, DeviceConfig, type_name

# AllocatedClaim: what the scheduler allocated to this driver by one claim, as values.


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


# Reading a claim as the API server sent it.

FROM_CLASS = "FromClass"  # the source of a config that comes from a device class
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"  # annotation of claims that were made from a template
_PRECEDENCE = {FROM_CLASS: 0, "FromClaim": 1}


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
    return tuple(RESULT.read(result, device_class=classes.get(result["request"], "")) for result in results)


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
            decoded.append((rank, ConfigEntry(config, tuple(entry.get("requests") or ()), source == FROM_CLASS)))
    refuse(faults, full_name)
    return tuple(entry for _, entry in sorted(decoded, key=lambda ranked: ranked[0]))


# Claim results: a claim's identity and its allocated devices, read from an object that may be malformed.

ClaimName = tuple[str, str]
"""A claim's namespace and name."""


def results(claim: ClaimWire) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a claim's allocation; those that don't name a device are left out."""
    found: Any = claim
    for key in ("status", "allocation", "devices", "results"):
        found = found.get(key) if isinstance(found, dict) else None
    for result in found if isinstance(found, list) else ():
        if isinstance(result, dict) and all(isinstance(result.get(key), str) for key in ("driver", "pool", "device")):
            yield result


def name_of(claim: ClaimWire) -> ClaimName:
    """Return a claim's namespace and name."""
    metadata = _metadata(claim)
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def uid_of(claim: ClaimWire) -> str:
    """Return a claim's UID, "" if it is not known."""
    return str(_metadata(claim).get("uid", ""))


def _metadata(claim: ClaimWire) -> Mapping[str, Any]:
    metadata = claim.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


# Shape: whether a claim has the form that the API requires, before any of it is trusted.

# A future Kubernetes may allow more than it does today: these limits bound the work, not the API.
_RESULTS, _CONFIGS, _CONSUMERS = 8 * ALLOCATION_RESULTS, 64 * ALLOCATION_RESULTS, 16 * RESERVED_FOR
_REQUEST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?")
_MAX = Quantity.of(2**63 - 1)
_SHOWN = 80  # characters of a wrong value that a message shows


def check_shape(claim: Any, driver: str = "") -> None:
    """Check every field of a claim that this driver uses; of its devices, only those of `driver`.

    Raises: ClaimError("claim.malformed").
    """
    metadata = _object(_object(claim, "claim").get("metadata") or {}, "metadata")
    for name, is_good in (("namespace", is_dns_label), ("name", is_dns_subdomain), ("uid", is_claim_uid)):
        if metadata.get(name, "") != "":
            _text(metadata.get(name), f"metadata.{name}", is_good)
    status = _object(claim.get("status") or {}, "status")
    for path, consumer in _rows(status, "status", "reservedFor", _CONSUMERS):
        if consumer.get("resource") == "pods" and consumer.get("uid") is not None:
            _text(consumer["uid"], f"{path}.uid", is_claim_uid)
    allocation = _object(status.get("allocation") or {}, "status.allocation")
    devices = _object(allocation.get("devices") or {}, "status.allocation.devices")
    for path, result in _rows(devices, "status.allocation.devices", "results", _RESULTS):
        if result.get("driver") == driver:
            _check_result(result, path)
    for path, entry in _rows(devices, "status.allocation.devices", "config", _CONFIGS):
        opaque = _object(entry.get("opaque") or {}, f"{path}.opaque")
        if opaque.get("driver") == driver:
            _check_entry(entry, path)


def _check_result(result: Mapping[str, Any], path: str) -> None:
    _text(result.get("request"), f"{path}.request", lambda text: _REQUEST.fullmatch(text) is not None)
    _text(result.get("pool"), f"{path}.pool", _is_pool)
    _text(result.get("device"), f"{path}.device", is_dns_label)
    if result.get("shareID"):
        _text(result["shareID"], f"{path}.shareID", is_claim_uid)
    if not isinstance(result.get("adminAccess") or False, bool):
        raise _fault(f"{path}.adminAccess", "true or false", result["adminAccess"])
    consumed = _object(result.get("consumedCapacity") or {}, f"{path}.consumedCapacity")
    for name, amount in consumed.items():
        if not _is_amount(amount):
            raise _fault(f"{path}.consumedCapacity[{name[:_SHOWN]}]", "a quantity below 8Ei", amount)


def _check_entry(entry: Mapping[str, Any], path: str) -> None:
    source, requests = entry.get("source", ""), entry.get("requests") or []
    if not isinstance(source, str):
        raise _fault(f"{path}.source", "a string", source)
    if not isinstance(requests, list) or len(requests) > _RESULTS:
        raise _fault(f"{path}.requests", f"a list of at most {_RESULTS}", requests)
    for index, name in enumerate(requests):
        _text(name, f"{path}.requests[{index}]", lambda text: _REQUEST.fullmatch(text) is not None)


def _rows(parent: Mapping[str, Any], path: str, key: str, maximum: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = parent.get(key) or []
    if not isinstance(rows, list) or len(rows) > maximum:
        raise _fault(f"{path}.{key}", f"a list of at most {maximum}", rows)
    for index, row in enumerate(rows):
        yield f"{path}.{key}[{index}]", _object(row, f"{path}.{key}[{index}]")


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _fault(path, "an object", value)
    return value


def _text(value: Any, path: str, is_good: Callable[[str], bool]) -> None:
    if not isinstance(value, str) or not is_good(value):
        raise _fault(path, "what the API allows there", value)


def _is_pool(text: str) -> bool:
    return len(text) <= POOL_NAME_CHARS and all(map(is_dns_subdomain, text.split("/")))


def _is_amount(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)[:_SHOWN]) == _SHOWN:
        return False
    try:
        amount = Quantity.parse(str(value))
    except QuantityError:
        return False
    return Quantity.of(0) <= amount <= _MAX


def _fault(path: str, expected: str, value: Any) -> ClaimError:
    shown = ascii(value)[:_SHOWN] if isinstance(value, str | int) else type_name(value)
    return ClaimError(
        "malformed",
        f"the API server's answer for the claim has {shown} at {path}, expected {expected}",
        hint="no Kubernetes API server stores such a claim: find out what answered instead",
    )


# How an allocated claim is recorded in the ledger, and what is read of such a record.

_DEVICES, _PODS, _POD_NAMES = "devices", "pods", "podNames"  # keys of a record


def record_of_claim(claim: AllocatedClaim) -> Wire:
    """Return the allocation as JSON for the ledger (the claim's UID, namespace and name have their own columns)."""
    return _CLAIM.write(claim)


def claim_of_record(uid: str, namespace: str, name: str, record: Mapping[str, Any]) -> AllocatedClaim:
    """Return the claim from which `record_of_claim` made a record; keys that a newer agent added are ignored."""
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


def _consumed(amounts: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(amount)) for name, amount in (amounts or {}).items()))


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
RESULT = RecordForm(
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
    is_class=Key("source", lambda _: FROM_CLASS, lambda source: source == FROM_CLASS, left_out=False),
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
