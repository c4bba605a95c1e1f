"""Shape: whether a claim has the form that the API requires, before any of it is trusted.

In: a ResourceClaim as it came off the wire. Out: nothing, or a ClaimError that names the first field at fault. What an
API server sends is checked like any other input: names become parts of paths, of CDI names and of rows in the ledger.
Only entries of this driver are examined; opaque parameters are left to `config.reading`.
Source: Kubernetes API resource/v1, AllocationResult and its validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dra_driver.claims.config.device_config import type_name
from dra_driver.model.errors import ClaimError
from dra_driver.model.limits import ALLOCATION_RESULTS, POOL_NAME_CHARS, RESERVED_FOR
from dra_driver.model.names import is_claim_uid, is_dns_label, is_dns_subdomain
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError

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
