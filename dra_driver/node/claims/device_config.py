"""DeviceConfig, one decoded opaque config, and ConfigFault, one reported fault: values made by `reading` and `schema`.

Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dra_driver.base.wire import DeviceType, MpsSettings, SharingSettings, Wire

API_VERSION = "resource.nvidia.com/v1beta1"
AMD_API_VERSION = "gpu.resource.amd.com/v1alpha1"
DEVICE_TYPES = {
    "GpuConfig": DeviceType.GPU,
    "MigDeviceConfig": DeviceType.MIG,
    "VfioDeviceConfig": DeviceType.VFIO,
}
# Kinds that NVIDIA's driver supports and this one does not.
UNSUPPORTED_KINDS = ("ComputeDomainChannelConfig", "ComputeDomainDaemonConfig")
LEGACY_ONLY, PREFER_IOMMUFD = "LegacyOnly", "PreferIommuFD"  # values of backendPolicy


@dataclass(frozen=True, slots=True)
class IommuSettings:
    """The device nodes by which a virtual machine gets a GPU: the IOMMU group's, or one below iommufd if there is one.

    With `has_api_device` the container also gets the node with which memory is mapped (KubeVirt needs it).
    """

    prefers_iommufd: bool = False
    has_api_device: bool = False


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One decoded config. `kind` decides to which type of device it applies; without settings it configures nothing.

    `group` is its API group and version. `compute_units` is how many of a GPU's units the claim's programs may use.
    """

    kind: str
    settings: SharingSettings | None = None
    iommu: IommuSettings | None = None
    compute_units: int | None = None
    group: str = API_VERSION

    @property
    def device_type(self) -> DeviceType:
        """The undivided type of device to which this config applies."""
        return DEVICE_TYPES[self.kind]

    def record(self) -> Wire:
        """Return the config for the ledger, in the form that `decode_config` reads."""
        wire: Wire = {"apiVersion": self.group, "kind": self.kind}
        if self.compute_units is not None:
            wire["computeUnits"] = {"count": self.compute_units}
        if self.iommu is not None:
            policy = PREFER_IOMMUFD if self.iommu.prefers_iommufd else LEGACY_ONLY
            wire["iommu"] = {"backendPolicy": policy, "enableAPIDevice": self.iommu.has_api_device}
        if self.settings is not None:
            wire["sharing"] = _sharing_record(self.settings, is_gpu=self.device_type is DeviceType.GPU)
        return wire


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One thing that is wrong with a config: `path` names the field as a person would write it."""

    path: str
    message: str
    is_unsupported: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def _sharing_record(settings: SharingSettings, *, is_gpu: bool) -> Wire:
    if not isinstance(settings, MpsSettings):
        more = {"timeSlicingConfig": {"interval": str(settings.interval)}} if is_gpu else {}
        return {"strategy": "TimeSlicing", **more}
    limits = {device: str(limit) for device, limit in settings.per_device_limits.items()}
    mps = {
        "defaultActiveThreadPercentage": settings.active_thread_percentage,
        "defaultPinnedDeviceMemoryLimit": settings.pinned_memory_limit,
        "defaultPerDevicePinnedMemoryLimit": limits or None,
        "multiUser": settings.multi_user or None,
    }
    return {"strategy": "MPS", "mpsConfig": {field: value for field, value in mps.items() if value is not None}}


def type_name(value: Any) -> str:
    """Return the name of a JSON type as a person would write it."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
