"""How an allocated claim is recorded in the ledger, and what is read of such a record.

In: an `AllocatedClaim`, or its record. Out: its record, the claim, or single facts of a record that is not read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim, AllocatedDevice, ConfigEntry
from dra_driver.claims.config.device_config import DeviceConfig
from dra_driver.claims.config.reading import decode_config
from dra_driver.model.records import Key, RecordForm
from dra_driver.model.wire import Wire

FROM_CLASS = "FromClass"  # the source of a config that comes from a device class
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
