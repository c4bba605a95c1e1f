"""Reads this driver's part of a ResourceClaim as the API server sends it, and joins it with the devices of this node.

In: the claim's JSON, untrusted until its shape is checked. Out: an `AllocatedClaim`, whose configs are sorted so that
later ones win; and a `ClaimOnNode`, with the device behind each result and the configs that apply to it. Pure.
Source: Kubernetes API resource/v1, AllocationResult; KEP-4381 (structured parameters, configs and their order),
KEP-4816 (sub-requests), KEP-5075 (shares).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import ALLOCATION_RESULTS, POOL_NAME_CHARS, RESERVED_FOR, ClaimError, Retry
from dra_driver.base.names import is_claim_uid, is_dns_label, is_dns_subdomain
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import ClaimWire, DeviceType, Key, RecordForm, Wire
from dra_driver.node import cdi
from dra_driver.node.claims.config import read_config, refuse
from dra_driver.node.claims.device_config import ConfigFault, DeviceConfig, IommuSettings, type_name
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory


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


FROM_CLASS = "FromClass"  # the source of a config that comes from a device class
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"  # annotation of claims that were made from a template


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
    return tuple(_RESULT.read(result, device_class=classes.get(result["request"], "")) for result in results)


def _classes(claim_wire: ClaimWire) -> dict[str, str]:
    """Return the device class of each request and sub-request, by the name that a result has.

    The specification decides nothing here, so a malformed one only leaves the classes unknown.
    """
    spec = claim_wire.get("spec")
    classes: dict[str, str] = {}
    for request in _mappings(spec.get("devices") if isinstance(spec, dict) else None, "requests"):
        choices = [
            (f"{request.get('name')}/{choice.get('name')}", choice) for choice in _mappings(request, "firstAvailable")
        ]
        for name, choice in ((str(request.get("name")), request.get("exactly")), *choices):
            device_class = choice.get("deviceClassName") if isinstance(choice, dict) else None
            if isinstance(device_class, str) and is_dns_subdomain(device_class):
                classes[name] = device_class
    return classes


def _mappings(value: Any, key: str) -> list[Wire]:
    rows = value.get(key) if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _decode_configs(entries: Any, driver: str, full_name: str) -> tuple[ConfigEntry, ...]:
    """Decode the configs of this driver, class before claim; the faults of all entries are raised together."""
    faults: list[ConfigFault] = []
    decoded: list[ConfigEntry] = []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        path = f"status.allocation.devices.config[{index}].opaque.parameters"
        config = read_config(opaque.get("parameters"), path, faults, driver)
        if config is not None:
            is_class = entry.get("source") == FROM_CLASS
            decoded.append(ConfigEntry(config, tuple(entry.get("requests") or ()), is_class))
    refuse(faults, full_name)
    return tuple(sorted(decoded, key=lambda entry: not entry.is_class))


def _consumed(amounts: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(amount)) for name, amount in (amounts or {}).items()))


# Where an allocation's result has what does not have the same name here; the class is not in it.
RESULT_KEYS = {
    "share_id": Key("shareID", read=lambda share_id: share_id or None, left_out=None),
    "is_admin": Key("adminAccess", read=bool, left_out=False),
    "consumed": Key("consumedCapacity", write=dict, read=_consumed, left_out=()),
}
_RESULT = RecordForm(AllocatedDevice, without=("device_class",), **RESULT_KEYS)


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


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """One result of a claim, and the device of this node behind it.

    `configs` are those that apply, of which the last one wins. `in_file` is its name in the claim's CDI file.
    """

    result: AllocatedDevice
    device: Device
    configs: tuple[ConfigEntry, ...]
    in_file: str

    @property
    def config(self) -> DeviceConfig | None:
        """The config that wins, None if none applies."""
        return self.configs[-1].config if self.configs else None

    @property
    def iommu(self) -> IommuSettings:
        """How a virtual machine gets the device; without a config, as the vendor's own driver would pass it.

        Source: NVIDIA's DRA driver, VfioDeviceConfig: the legacy backend, without the API device; AMD's and Intel's
        drivers always pass the API device.
        """
        facts = self.device.gpu.passthrough
        of_config = self.config.iommu if self.config is not None else None
        return of_config or IommuSettings(has_api_device=facts is not None and facts.has_api_device)

    @property
    def is_shared(self) -> bool:
        """Whether other claims may have shares of the device too."""
        return self.device.share is not None or self.result.share_id is not None

    @property
    def is_made(self) -> bool:
        """Whether Prepare makes the device: a placement or a GPU for a virtual machine. Admin access never makes one.

        Its nodes are known only once that step has been carried out.
        """
        return not self.result.is_admin and (self.device.placement is not None or self.device.type is DeviceType.VFIO)


@dataclass(frozen=True, slots=True)
class ClaimOnNode:
    """An allocated claim with its results, each once, in their order."""

    claim: AllocatedClaim
    results: tuple[ClaimedDevice, ...]

    @property
    def own(self) -> tuple[Device, ...]:
        """The devices that the claim owns, each once, without those to which it has admin access."""
        return tuple({one.device.name: one.device for one in self.results if not one.result.is_admin}.values())

    @property
    def made(self) -> frozenset[str]:
        """The names of the devices that Prepare makes."""
        return frozenset(claimed.device.name for claimed in self.results if claimed.is_made)

    def refuse(self, faults: Collection[ConfigFault]) -> None:
        """Refuse the claim for these faults, if there are any. Raises: ClaimError, as `reading.refuse`."""
        if faults:
            refuse(faults, f"claim {self.claim.namespace}/{self.claim.name}")


def join_claim(claim: AllocatedClaim, devices: Mapping[str, Device]) -> ClaimOnNode:
    """Join a claim with its devices, which are given by name (see `devices_of`).

    Raises: ClaimError("claim.bad-config") if a config names a request whose device is of another type.
    """
    faults: list[ConfigFault] = []
    results = []
    for result in dict.fromkeys(claim.devices):
        device, undivided = devices[result.device], devices[result.device].type.undivided
        meant = [entry for entry in claim.configs if not entry.requests or entry.names(result)]
        for entry in meant:
            if entry.requests and entry.config.device_type is not undivided:
                message = f"{entry.config.kind} does not go with {result.device}, which is of type {device.type}"
                faults.append(fault_of(result, message))
        applying = tuple(entry for entry in meant if entry.config.device_type is undivided)
        in_file = cdi.device_name(claim.uid, result.device, result.share_id)
        results.append(ClaimedDevice(result, device, applying, in_file))
    joined = ClaimOnNode(claim, tuple(results))
    joined.refuse(faults)
    return joined


def fault_of(result: AllocatedDevice, message: str) -> ConfigFault:
    """Return a fault in the config for a result's request."""
    return ConfigFault(f"config for request {result.request}", message)


def devices_of(claim: AllocatedClaim, inventory: Inventory, pool: str) -> dict[str, Device]:
    """Return the claim's devices in the inventory of the node with this pool, by name.

    Raises: ClaimError("claim.other-pool"); and, with retry LATER, ("claim.hardware-waiting") while the hardware does
    not answer at all, ("claim.device-unknown") naming every device that this node does not have now, ("claim.gpu-lost")
    where its GPU is lost.
    """
    _refuse_other_pools(claim, pool)
    found = {d.device: inventory.find_or_replica(d.device, d.share_id) for d in claim.devices}
    missing = sorted(name for name, device in found.items() if device is None)
    if not missing:
        return {name: device for name, device in found.items() if device is not None}
    if inventory.waiting_for:
        raise ClaimError(
            "hardware-waiting",
            f"claim {claim.namespace}/{claim.name} waits for {inventory.waiting_for}",
            retry=Retry.LATER,
        )
    refuse_lost(claim, inventory.on_lost_gpus(missing))
    raise ClaimError(
        "device-unknown",
        f"claim {claim.namespace}/{claim.name} was allocated {', '.join(missing)}, which this node does not have now",
        hint="a GPU may have been lost or re-partitioned; `dra-driver devices` shows what is there",
        retry=Retry.LATER,
    )


def _refuse_other_pools(claim: AllocatedClaim, pool: str) -> None:
    foreign = sorted({device.pool for device in claim.devices} - {pool})
    if foreign:
        raise ClaimError(
            "other-pool",
            f"claim {claim.namespace}/{claim.name} has devices of pool {', '.join(foreign)}, "
            f"but this node's pool is {pool}",
            hint="another driver's slices were used; delete the pod and this claim so that another is allocated",
        )


def refuse_lost(claim: AllocatedClaim, names: Collection[str]) -> None:
    """Refuse to prepare a claim with these devices of lost GPUs, if there are any. Raises: ClaimError."""
    if not names:
        return
    full_name = f"{claim.namespace}/{claim.name}"
    raise ClaimError(
        "gpu-lost",
        f"claim {full_name} was allocated {', '.join(names)}, whose GPU is lost",
        hint=f"delete the pods that use claim {full_name}: the allocation lasts for as long as they exist, and only "
        "the pods that replace them are scheduled again",
        retry=Retry.LATER,
    )
