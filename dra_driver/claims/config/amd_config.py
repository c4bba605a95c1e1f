"""Opaque configs of AMD's API group: parameters come in, a `DeviceConfig` goes out, or every fault with its path.

`GpuConfig` has one field here that AMD's driver does not have, `computeUnits`; `VfioDeviceConfig` has the same fields
as NVIDIA's.
Source: ROCm/k8s-gpu-dra-driver, API group gpu.resource.amd.com/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dra_driver.claims.config.device_config import AMD_API_VERSION, API_VERSION, ConfigFault, DeviceConfig, type_name
from dra_driver.model.vendors import VENDORS

MAX_COUNT = 4096  # the most compute units that a config may ask for; no GPU has so many
_GPU, _VFIO = "GpuConfig", "VfioDeviceConfig"
_FIELDS = ("apiVersion", "kind", "computeUnits")
_OTHER_VENDORS_DRIVERS = frozenset(vendor.driver for vendor in VENDORS if vendor.name != "amd")


def may_configure(driver: str) -> bool:
    """Return whether configs of AMD's group can be meant for the driver of this name.

    They can't if it is the name of another vendor's driver. A name that an administrator chose may be that of AMD's.
    """
    return driver not in _OTHER_VENDORS_DRIVERS


def read_amd_config(parameters: Mapping[str, Any], path: str, faults: list[ConfigFault]) -> DeviceConfig | None:
    """Decode one config. Add its faults to `faults`, and return None if there are any."""
    kind = parameters.get("kind")
    if kind == _VFIO:
        return _read_vfio(parameters, path, faults)
    before = len(faults)
    if kind != _GPU:
        faults.append(ConfigFault(f"{path}.kind", f"must be one of {_GPU}, {_VFIO}, is {kind!r:.60}"))
    faults += [
        ConfigFault(f"{path}.{name:.60}", f"unknown field; known are {', '.join(_FIELDS)}")
        for name in parameters
        if name not in _FIELDS
    ]
    count = _read_count(parameters.get("computeUnits"), f"{path}.computeUnits", faults)
    return DeviceConfig(_GPU, group=AMD_API_VERSION, compute_units=count) if len(faults) == before else None


def _read_vfio(parameters: Mapping[str, Any], path: str, faults: list[ConfigFault]) -> DeviceConfig | None:
    from dra_driver.claims.config import nvidia_config  # noqa: PLC0415 - pydantic takes memory, and few agents read configs

    found = nvidia_config.read_nvidia_config(_VFIO, {**parameters, "apiVersion": API_VERSION}, path)
    if isinstance(found, DeviceConfig):
        return replace(found, group=AMD_API_VERSION)
    faults.extend(found)
    return None


def _read_count(section: Any, path: str, faults: list[ConfigFault]) -> int | None:
    if section is None:
        return None
    if not isinstance(section, dict):
        faults.append(ConfigFault(path, f"must be an object with the field count, is {type_name(section)}"))
        return None
    faults += [
        ConfigFault(f"{path}.{name:.60}", "unknown field; known is count") for name in section if name != "count"
    ]
    count = section.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        found = repr(count) if isinstance(count, int) and abs(count) < 10**9 else type_name(count)
        faults.append(ConfigFault(f"{path}.count", f"must be a whole number from 1 to {MAX_COUNT}, is {found}"))
        return None
    return count
