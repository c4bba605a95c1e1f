"""Device places: where on its GPU each published device is, which decides the devices that a fault affects."""

from __future__ import annotations

from dra_driver.health.affected_devices import DevicePlace
from dra_driver.inventory.device import Device


def place_of(device: Device) -> DevicePlace:
    """Return a device's place: its GPU and, for a partition, profile and first memory slice."""
    at = None
    if device.placement is not None:
        at = (device.placement.profile.gi_profile_id, device.placement.start)
    elif device.partition is not None:
        at = (device.partition.gi_profile_id, device.partition.start)
    return DevicePlace(device.name, device.gpu.pci_address, at, device.shared_name)
