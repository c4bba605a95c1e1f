"""DeviceKind: the devices behind an extended resource of a device plugin, in terms of classes and selectors."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dra_driver.model.vendors import DEFAULT_VENDOR, registered_as

# The attribute that `profile` is compared with, by vendor. Source: docs/attributes*.md.
_PROFILE_ATTRIBUTES = {"nvidia": "profile", "amd": "partitionProfile", "intel": "driver"}


@dataclass(frozen=True, slots=True, order=True)
class DeviceKind:
    """A kind of device: a whole GPU, a partition, a share of either, or monitoring access to all devices of a node.

    `profile` narrows the kind if the resource's name does: a MIG profile (1g.10gb), AMD's compute and memory mode
    (cpx_nps4), Intel's kernel driver (xe). `is_monitor` asks for access to devices that other claims hold.
    """

    is_partition: bool = False
    is_share: bool = False
    profile: str = ""
    vendor: str = DEFAULT_VENDOR.name
    is_monitor: bool = False

    @property
    def is_default_vendors(self) -> bool:
        """Whether the kind belongs to this driver's first vendor, NVIDIA, whose labels and sharing are migrated too."""
        return self.vendor == DEFAULT_VENDOR.name

    @property
    def device_class(self) -> str:
        """The name of the class that hands out such devices."""
        if not self.is_default_vendors:
            return registered_as(self.vendor).driver
        stem = "mig" if self.is_partition else "gpu"
        return f"{stem}-share.nvidia.com" if self.is_share else f"{stem}.nvidia.com"

    @property
    def selectors(self) -> tuple[str, ...]:
        """The expressions that narrow the class to this kind; each also works on a device without the attribute."""
        if not self.profile:
            return ()
        domain = f'device.attributes["{registered_as(self.vendor).driver}"]'
        text = f'{domain}.?{_PROFILE_ATTRIBUTES[self.vendor]}.orValue("") == {json.dumps(self.profile)}'
        if self.vendor == "amd" and self.is_partition:  # a divided GPU as a whole has the mode's name, too
            return (text, f'{domain}.?type.orValue("") == "amdgpu-partition"')
        return (text,)

    @property
    def stem(self) -> str:
        """The text from which the name of a request for such a device is made."""
        if self.is_monitor:
            return "monitor"
        if self.is_partition and self.profile:
            return f"mig-{self.profile}" if self.is_default_vendors else self.profile
        return "gpu"

    @property
    def words(self) -> str:
        """The kind as a report shows it."""
        what = f"MIG partition {self.profile}".strip() if self.is_partition else "whole GPU"
        return f"share of a {what.replace('whole ', '')}" if self.is_share else what
