"""Opaque configs of NVIDIA's API group: parameters come in, a `DeviceConfig` goes out, or every fault with its path.

Importing this module costs megabytes of memory, as `schema` does. Never: which device a config applies to.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from dra_driver.claims.config.device_config import (
    PREFER_IOMMUFD,
    ConfigFault,
    DeviceConfig,
    IommuSettings,
)
from dra_driver.claims.config.schema import (
    MODELS,
    GpuSharing,
    IommuConfig,
    MigDeviceSharing,
    MpsConfig,
    VfioDeviceConfig,
)
from dra_driver.claims.config.schema_faults import as_fault
from dra_driver.model.sharing import Interval, MpsSettings, SharingSettings, TimeSlicingSettings


def read_nvidia_config(kind: str, parameters: Mapping[str, Any], path: str) -> DeviceConfig | tuple[ConfigFault, ...]:
    """Return the config, or everything that is wrong with it."""
    try:
        config = MODELS[kind].model_validate(parameters)
    except ValidationError as error:
        return tuple(as_fault(one, path) for one in error.errors(include_url=False))
    if isinstance(config, VfioDeviceConfig):
        return DeviceConfig(kind, iommu=_iommu(config.iommu or IommuConfig()))  # type: ignore[call-arg] # has defaults
    return DeviceConfig(kind, settings_of(config.sharing) if config.sharing else None)


def _iommu(iommu: IommuConfig) -> IommuSettings:
    return IommuSettings(iommu.backendPolicy == PREFER_IOMMUFD, has_api_device=iommu.enableAPIDevice is True)


def settings_of(sharing: GpuSharing | MigDeviceSharing) -> SharingSettings:
    """Return a valid `sharing` section as settings."""
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
