"""Opaque configs of NVIDIA's API group: parameters come in, a `DeviceConfig` goes out, or every fault with its path.

Importing this module costs megabytes of memory, as `schema` does. Never: which device a config applies to.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import (
    BaseModel,
    ValidationError,
)

from dra_driver.claims.config.device_config import (
    PREFER_IOMMUFD,
    ConfigFault,
    DeviceConfig,
    IommuSettings,
)
from dra_driver.claims.config.schema import (
    MODELS,
    GpuConfig,
    GpuSharing,
    IommuConfig,
    MigDeviceSharing,
    MpsConfig,
    VfioDeviceConfig,
)
from dra_driver.claims.config.schema_faults import as_fault
from dra_driver.model.sharing import Interval, MpsSettings, SharingSettings, TimeSlicingSettings

_OWNERS = {"timeSlicingConfig": "TimeSlicing", "mpsConfig": "MPS"}


def read_nvidia_config(kind: str, parameters: Mapping[str, Any], path: str) -> DeviceConfig | tuple[ConfigFault, ...]:
    """Return the config, or everything that is wrong with it."""
    model = MODELS[kind]
    sharing = None if model is VfioDeviceConfig else parameters.get("sharing")
    faults = list(_combination_faults(model, sharing, f"{path}.sharing"))
    try:
        config = model.model_validate(parameters)
    except ValidationError as error:
        known = {fault.path for fault in faults}
        faults += [f for f in (as_fault(model, e, path) for e in error.errors()) if f.path not in known]
    if faults:
        return tuple(faults)
    if isinstance(config, VfioDeviceConfig):
        return DeviceConfig(kind, iommu=_iommu(config.iommu or IommuConfig()))  # type: ignore[call-arg] # has defaults
    return DeviceConfig(kind, _settings(config.sharing))


def _iommu(iommu: IommuConfig) -> IommuSettings:
    return IommuSettings(iommu.backendPolicy == PREFER_IOMMUFD, has_api_device=iommu.enableAPIDevice is True)


def _settings(sharing: GpuSharing | MigDeviceSharing | None) -> SharingSettings | None:
    if sharing is None:
        return None
    if sharing.strategy == "TimeSlicing":
        slicing = sharing.timeSlicingConfig if isinstance(sharing, GpuSharing) else None
        return TimeSlicingSettings(Interval(slicing.interval or "Default") if slicing else Interval.DEFAULT)
    mps = sharing.mpsConfig or MpsConfig()  # type: ignore[call-arg] # every field has a default
    return MpsSettings(
        active_thread_percentage=mps.defaultActiveThreadPercentage,
        pinned_memory_limit=mps.defaultPinnedDeviceMemoryLimit,
        per_device_limits=MappingProxyType(mps.defaultPerDevicePinnedMemoryLimit or {}),
        multi_user=bool(mps.multiUser),
    )


def _combination_faults(model: type[BaseModel], sharing: Any, path: str) -> Iterator[ConfigFault]:
    """Yield faults for settings of the strategy that was not chosen; models alone would report them only at the end."""
    if not isinstance(sharing, dict) or sharing.get("strategy") not in _OWNERS.values():
        return
    part = GpuSharing if model is GpuConfig else MigDeviceSharing
    for field, owner in _OWNERS.items():
        if field in part.model_fields and sharing.get(field) is not None and sharing["strategy"] != owner:
            message = f"only goes with strategy {owner}, strategy is {sharing['strategy']}"
            yield ConfigFault(f"{path}.{field}", message)
