"""Metadata reading: reads a file about devices as a program in a container would do by the API.

In: the content of a file, untrusted until checked. Out: its claim, and the attributes of each device. A file is a
stream of objects, one for each version of the API, with the same content; the first of a known version is used.
Source: KEP-5304; k8s.io/dynamic-resource-allocation/api/metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.claims.reports.metadata import GROUP, VERSIONS, container_path
from dra_driver.model.errors import InputError

MAX_BYTES = 256 * 1024
_KNOWN = {f"{GROUP}/{version}" for version in VERSIONS}
_MAX_DEVICES = 128
_MAX_CHARS = 128  # the most characters of a value that are shown


@dataclass(frozen=True, slots=True)
class DescribedDevice:
    """A device of a request. `attributes` are in the order of the file, their values as text."""

    request: str
    driver: str
    pool: str
    name: str
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DescribedClaim:
    """One claim as one file describes it."""

    uid: str
    name: str
    pod_claim_name: str
    generation: int
    devices: tuple[DescribedDevice, ...]

    def path_of(self, device: DescribedDevice) -> str:
        """Return the path at which containers find the file that describes a device."""
        return container_path(device.driver, self.name, self.pod_claim_name, device.request.partition("/")[0])


def read_metadata(content: bytes) -> DescribedClaim:
    """Return the claim that a file describes. Raises: InputError("input.metadata") that says what is wrong."""
    if len(content) > MAX_BYTES:
        raise _fault(f"it is larger than {MAX_BYTES} bytes")
    try:
        found = next((one for one in _objects(content.decode()) if one.get("apiVersion") in _KNOWN), None)
    except (ValueError, RecursionError) as error:
        raise _fault(f"it is not JSON: {str(error)[:_MAX_CHARS]}") from error
    if found is None or found.get("kind") != "DeviceMetadata":
        raise _fault(f"it has no DeviceMetadata of {GROUP}, {' or '.join(VERSIONS)}")
    try:
        meta = found["metadata"]
        return DescribedClaim(
            uid=_text(meta["uid"]),
            name=_text(meta["name"]),
            pod_claim_name=_text(found.get("podClaimName", "")),
            generation=int(meta.get("generation", 0)),
            devices=tuple(_devices(found))[:_MAX_DEVICES],
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _fault("a field is missing or has the wrong type") from error


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream. Raises: ValueError."""
    decoder, at = json.JSONDecoder(), _begin(text, 0)
    while at < len(text):
        found, end = decoder.raw_decode(text, at)
        if not isinstance(found, dict) or not isinstance(found.get("apiVersion"), str):
            raise ValueError("one of the values is not an API object")  # noqa: TRY004 - as json's own
        yield found
        at = _begin(text, end)


def _begin(text: str, at: int) -> int:
    """Return where the next object begins, after blanks."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _devices(found: dict[str, Any]) -> Iterator[DescribedDevice]:
    for request in found["requests"]:
        for one in request["devices"]:
            attributes = tuple((_text(name), _value(value)) for name, value in (one.get("attributes") or {}).items())
            driver, pool, name = _text(one["driver"]), _text(one["pool"]), _text(one["name"])
            yield DescribedDevice(_text(request["name"]), driver, pool, name, attributes)


def _value(value: dict[str, Any]) -> str:
    """Return an attribute's value as text; each has one type."""
    ((_, inner),) = value.items()
    return (str(inner).lower() if isinstance(inner, bool) else str(inner))[:_MAX_CHARS]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[: _MAX_CHARS * 2]


def _fault(why: str) -> InputError:
    return InputError("metadata", why)
