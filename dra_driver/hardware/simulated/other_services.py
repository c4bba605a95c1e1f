"""Foreign devices: what another driver on the same node would publish, for examples that align devices.

In: an entry of a profile's `foreign` list. Out: devices in wire form. This driver never prepares any of them.

Source: Kubernetes API resource/v1 Device (names, limits).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dra_driver.base import errors, names
from dra_driver.base.errors import DriverError
from dra_driver.base.quantity import Quantity
from dra_driver.base.text.json_text import Fields
from dra_driver.base.versions import Semver
from dra_driver.base.wire import DeviceWire, Wire

_NAME = re.compile(r"(?P<domain>[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?(?P<id>[A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class ForeignDriver:
    """All devices that another driver has on the node; its pool is named after the node."""

    driver: str
    devices: tuple[DeviceWire, ...]


def decode_foreign(row: Fields) -> ForeignDriver:
    """Read one driver and its devices."""
    driver = row.text("driver")
    try:
        names.check_driver_name(driver or "x")
    except DriverError as error:
        row.fault("driver", error.message)
    devices = tuple(_decode_device(device) for device in row.rows("devices", maximum=errors.SLICE_DEVICES))
    if len({device["name"] for device in devices}) < len(devices):
        row.fault("devices", "two devices have the same name")
    row.close()
    return ForeignDriver(driver, devices)


def _decode_device(row: Fields) -> DeviceWire:
    name = row.text("name")
    if name and not names.is_dns_label(name):
        row.fault("name", f"{name!r} is not a DNS label")
    attributes: Wire = {}
    section = row.section("attributes")
    for key, value in section.entries():
        _check_key(section, key)
        attributes[key] = _attribute(section, key, value)
    capacity: Wire = {}
    section = row.section("capacity")
    for key, value in section.entries():
        _check_key(section, key)
        capacity[key] = {"value": _quantity(section, key, value)}
    if len(attributes) + len(capacity) > errors.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        row.fault("attributes", f"more than {errors.DEVICE_ATTRIBUTES_AND_CAPACITIES} attributes and capacities")
    row.close()
    return {"name": name, "attributes": attributes, "capacity": capacity}


def _check_key(section: Fields, key: object) -> None:
    match = _NAME.fullmatch(str(key))
    if match is None or len(match["id"]) > errors.ATTRIBUTE_NAME_CHARS:
        section.fault(str(key), f"expected a name, or domain/name, of at most {errors.ATTRIBUTE_NAME_CHARS} characters")
    elif len(match["domain"] or "") > errors.ATTRIBUTE_DOMAIN_CHARS:
        section.fault(str(key), f"the domain has more than {errors.ATTRIBUTE_DOMAIN_CHARS} characters")


def _attribute(section: Fields, key: str, value: object) -> Wire:
    """Return a value in wire form; a version is written as `{version: "1.2.3"}`."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            section.fault(key, f"{value} does not fit into 64 bits")
        return {"int": value}
    kind = "string"
    if isinstance(value, dict) and value.keys() == {"version"}:
        kind, value = "version", value["version"]
    if not isinstance(value, str) or len(value.encode()) > errors.ATTRIBUTE_STRING_BYTES:
        maximum = errors.ATTRIBUTE_STRING_BYTES
        section.fault(key, f"expected a string of at most {maximum} bytes, a number or true/false")
    elif kind == "version":
        try:
            Semver.parse(value)
        except DriverError as error:
            section.fault(key, f"{value!r} is not a semantic version: {error.message}")
    return {kind: value}


def _quantity(section: Fields, key: str, value: object) -> str:
    try:
        return str(Quantity.parse(str(value)))
    except DriverError as error:
        section.fault(key, f"{value!r} is not a quantity: {error.message}")
        return "0"
