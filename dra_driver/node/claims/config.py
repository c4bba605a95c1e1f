"""Opaque configs of `resource.nvidia.com/v1beta1`: parameters come in, a `DeviceConfig` goes out.

Decoding is strict: an unknown field, a wrong type or a value out of range is a fault with the field's path, and all
faults are reported together. A config that is well-formed but not implemented is refused as "not supported": a
setting is never silently ignored. The node and the admission webhook use the same check, `validate`. The fields are
defined in `schema`, which is imported only when there is a config to read, by `nvidia_config`.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dra_driver.base.errors import ClaimError
from dra_driver.base.flags import VENDORS
from dra_driver.base.wire import MpsSettings
from dra_driver.node.claims.device_config import (
    AMD_API_VERSION,
    API_VERSION,
    DEVICE_TYPES,
    UNSUPPORTED_KINDS,
    ConfigFault,
    DeviceConfig,
    type_name,
)

# Opaque configs of AMD's API group: parameters come in, a `DeviceConfig` goes out, or every fault with its path.

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
    from dra_driver.node.claims import config_schema  # noqa: PLC0415 - pydantic takes memory, and few agents read configs

    found = config_schema.read_nvidia_config(_VFIO, {**parameters, "apiVersion": API_VERSION}, path)
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


FAULTS_SHOWN, FAULT_CHARS = 20, 300
_DRIVERS_WITHOUT_MPS = frozenset(vendor.driver for vendor in VENDORS if vendor.name != "nvidia")


def validate(parameters: Any, path: str = "parameters", driver: str = "") -> list[ConfigFault]:
    """Return everything that is wrong with the opaque parameters of one config; an empty list accepts them.

    `driver` is the driver that the config is for, "" where that is not known.
    """
    faults: list[ConfigFault] = []
    read_config(parameters, path, faults, driver)
    return faults


def decode_config(parameters: Any, path: str = "parameters") -> DeviceConfig:
    """Decode opaque parameters; `path` is where they are in the claim, for the texts of faults.

    Raises: ClaimError("claim.bad-config") with every fault, or ("claim.config-not-supported") if the only faults are
    settings that this driver does not support yet.
    """
    faults: list[ConfigFault] = []
    config = read_config(parameters, path, faults)
    refuse(faults)
    assert config is not None  # noqa: S101 - only faults leave it out
    return config


def refuse(faults: Iterable[ConfigFault], subject: str = "opaque config") -> None:
    """Raise all faults as one ClaimError; return if there is none.

    The author of a config determines how long its faults are, and the text goes into an event, so it is truncated.
    """
    faults = tuple(faults)
    if not faults:
        return
    code = "config-not-supported" if all(f.is_unsupported for f in faults) else "bad-config"
    shown = [text if len(text) <= FAULT_CHARS else f"{text[:FAULT_CHARS]}…" for text in map(str, faults[:FAULTS_SHOWN])]
    if len(faults) > FAULTS_SHOWN:
        shown.append(f"and {len(faults) - FAULTS_SHOWN} more")
    raise ClaimError(
        code, f"{subject}: " + "; ".join(shown), hint="change the config in the claim or in its device class"
    )


def read_config(parameters: Any, path: str, faults: list[ConfigFault], driver: str = "") -> DeviceConfig | None:
    """Decode one config for a driver. Add its faults to `faults`, and return None if there are any."""
    from dra_driver.node.claims import config_schema  # noqa: PLC0415 - they import pydantic

    if not isinstance(parameters, dict):
        faults.append(ConfigFault(path, f"must be an object, is {type_name(parameters)}"))
        return None
    kind, version = parameters.get("kind"), parameters.get("apiVersion")
    if version == AMD_API_VERSION and may_configure(driver):
        return read_amd_config(parameters, path, faults)
    kinds = (*DEVICE_TYPES, *UNSUPPORTED_KINDS)
    if not isinstance(kind, str) or kind not in kinds:
        faults.append(ConfigFault(f"{path}.kind", config_schema.must_be(kinds, kind)))
    elif kind in DEVICE_TYPES:
        found = config_schema.read_nvidia_config(kind, parameters, path)
        before = len(faults)
        faults.extend(_vendor_faults(found, path, driver) if isinstance(found, DeviceConfig) else found)
        return found if isinstance(found, DeviceConfig) and len(faults) == before else None
    elif version == API_VERSION:
        faults.append(ConfigFault(f"{path}.kind", f"{kind} is not supported by this driver", is_unsupported=True))
    if version != API_VERSION:
        faults.append(ConfigFault(f"{path}.apiVersion", config_schema.must_be((API_VERSION,), version)))
    return None


def _vendor_faults(config: DeviceConfig, path: str, driver: str) -> Iterator[ConfigFault]:
    """Yield a fault for a setting that the devices of this driver can't have, as far as its name shows their vendor."""
    if isinstance(config.settings, MpsSettings) and driver in _DRIVERS_WITHOUT_MPS:
        yield ConfigFault(f"{path}.sharing.strategy", f"MPS is for NVIDIA's GPUs, not for devices of {driver}")
