"""Compute units: how many of a GPU's units the programs of a claim may use. Config and devices in, a step out.

The limit is cooperative: the runtime in the container reads it from a variable, which programs may change. Which units
a claim gets is decided when the step is carried out, because other claims of the same GPU have units too. Pure.
Source: Linux amdkfd (GPUs with workgroup processors, gfx10 and newer, take compute units in pairs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.claims.allocated.claim_on_node import ClaimOnNode, fault_of
from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.inventory.device import Device
from dra_driver.model.sharing import SharedDevice

_UNITS, _ARCHITECTURE = "computeUnits", "architecture"  # names of a published capacity and attribute
_FIRST_WITH_PAIRS = len("gfx1010")  # architectures of gfx9 and older have shorter names


@dataclass(frozen=True, slots=True)
class ComputeUnitsStep:
    """Restrict the programs of a claim to `count` of a GPU's `total` compute units, which no other claim gets.

    With `in_pairs` only whole pairs can be chosen. `in_file` are the names of the claim's devices in its CDI file.
    """

    kind: ClassVar[str] = "compute-units"

    device: SharedDevice
    count: int
    total: int
    in_pairs: bool
    in_file: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device.name


def plan_compute_units(on_node: ClaimOnNode) -> tuple[ComputeUnitsStep, ...]:
    """Return the step of the claim's device, if a config chooses compute units of it.

    Raises: ClaimError("claim.bad-config").
    """
    faults: list[ConfigFault] = []
    steps = []
    for one in on_node.results:
        count = one.config.compute_units if one.config else None
        if count is None or one.result.is_admin:
            continue
        device = one.device
        faults += [fault_of(one.result, text) for text in _faults(len(on_node.claim.devices), device, count)]
        gpu = device.gpu
        shared = SharedDevice(device.shared_name, gpu.uuid, gpu.minor, gpu.pci_address)
        total = device.capacity.get(_UNITS, 0)
        steps.append(ComputeUnitsStep(shared, count, total, _is_in_pairs(device), (one.in_file,)))
    on_node.refuse(faults)
    return tuple(steps)


def _faults(devices: int, device: Device, count: int) -> list[str]:
    """Return why a claim of so many devices can't have so many compute units of this one."""
    total = device.capacity.get(_UNITS)
    if not total:
        return [f"{device.name} does not say how many compute units it has, so none can be chosen"]
    if device.gpu.parts:
        return [
            f"{device.name} is {device.gpu.parts} GPUs for the runtime: computeUnits goes with one of its partitions"
        ]
    if devices > 1:
        return ["computeUnits goes with a claim of one device: the runtime counts the GPUs of a container from 0"]
    if count > total:
        return [f"computeUnits.count is {count}, and {device.name} has {total}"]
    if count % 2 and _is_in_pairs(device):
        return [f"computeUnits.count must be even, is {count}: {device.name} takes compute units in pairs"]
    return []


def _is_in_pairs(device: Device) -> bool:
    architecture = device.attributes.get(_ARCHITECTURE)
    return isinstance(architecture, str) and len(architecture) >= _FIRST_WITH_PAIRS
