"""Passthrough plan: which of a claim's devices go to a virtual machine, and by which nodes.

In: a claim and its devices. Out: a step for each GPU that has to leave its driver. Pure.
Source: NVIDIA's DRA driver, VfioDeviceConfig: without a config the legacy backend, without the API device; AMD's and
Intel's drivers always give it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.device_config import IommuSettings
from dra_driver.claims.sharing_plan import choose_configs
from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device
from dra_driver.model.errors import ClaimError
from dra_driver.model.shares import DeviceType


@dataclass(frozen=True, slots=True)
class PassthroughStep:
    """Bind a GPU to a VFIO driver; undone by binding it to its earlier driver."""

    kind: ClassVar[str] = "passthrough"

    device: str
    gpu: GpuFacts
    prefers_iommufd: bool

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device


def plan_passthrough(claim: AllocatedClaim, devices: Mapping[str, Device]) -> tuple[PassthroughStep, ...]:
    """Return a step for each GPU that the claim gives to a virtual machine.

    Raises: ClaimError("claim.bad-config") if a config names a request whose device is of another type,
    ("claim.device-in-use") if containers would have one of these GPUs by the same claim.
    """
    settings = _settings(claim, devices)
    owned = {one.device: one for one in settings if not one.is_admin}
    _refuse_both_sides(claim, devices, owned)
    return tuple(
        PassthroughStep(name, devices[name].gpu, settings[result].prefers_iommufd) for name, result in owned.items()
    )


def api_backends(claim: AllocatedClaim, devices: Mapping[str, Device]) -> tuple[bool, ...]:
    """Return for which backends the claim wants the API's node, each once: True for iommufd.

    Raises: as `plan_passthrough`.
    """
    wanted = (one.prefers_iommufd for one in _settings(claim, devices).values() if one.has_api_device)
    return tuple(sorted(set(wanted)))


def _refuse_both_sides(claim: AllocatedClaim, devices: Mapping[str, Device], passed: Collection[str]) -> None:
    """Refuse a claim to which a scheduler that can't count gave a GPU for a machine and for containers at once."""
    taken = {devices[name].gpu.pci_address: name for name in passed}
    for one in claim.devices:
        device = devices[one.device]
        other = taken.get(device.gpu.pci_address) if device.type is not DeviceType.IMEX_CHANNEL else None
        if other is not None and one.device != other and not one.is_admin:
            raise ClaimError(
                "device-in-use",
                f"claim {claim.namespace}/{claim.name} has {one.device} and {other}, which are the same GPU",
                hint="delete the pod and this claim so that other devices are allocated",
            )


def _settings(claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[AllocatedDevice, IommuSettings]:
    """Return the settings of each result that is a GPU for a virtual machine."""
    if not any(devices[one.device].type is DeviceType.VFIO for one in claim.devices):
        return {}
    return {
        result: (config.iommu if config is not None else None) or _without_config(devices[result.device])
        for result, config in choose_configs(claim, devices).items()
        if devices[result.device].type is DeviceType.VFIO
    }


def _without_config(device: Device) -> IommuSettings:
    facts = device.gpu.passthrough
    return IommuSettings(has_api_device=facts is not None and facts.has_api_device)
