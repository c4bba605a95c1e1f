"""The configuration file of NVIDIA's device plugin, read for its sharing settings.

In: the content of a file with `version: v1`. Out: rules. `sharing.timeSlicing.resources` and `sharing.mps.resources`
have the same meaning as for the device plugin; a setting that has no effect in a DRA driver is reported. The
rest of the file concerns the device plugin itself and is ignored, except for `flags.migStrategy`: with `single`, its
GPUs are MIG devices.

Source: NVIDIA k8s-device-plugin, api/config/v1 (names and meanings of the fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails

from dra_driver.documents.section import MAX_FAULTS, Section, Text, described, fault, wrong
from dra_driver.inventory.sharing.rules import MAX_REPLICAS, DeviceMatch, SharingRule, SharingRules
from dra_driver.model.shares import DeviceType, ShareMode
from dra_driver.model.sharing import MpsSettings, SharingSettings, Tenants, TimeSlicingSettings

VERSION = "v1"
MAX_RESOURCES = 64
_RESOURCE = r"(nvidia\.com/)?(gpu|mig-(?P<profile>[0-9]+(c\.[0-9]+)?g\.[0-9]+gb[.a-z]*))(\.shared)?"
_ID = re.compile(r"[0-9]{1,3}(:[0-9]{1,2})?|(GPU|MIG)-[0-9A-Za-z/-]{1,60}")
_Devices = tuple[tuple[str, ...], int | None]


def _devices(value: object) -> _Devices:
    """Read which devices are meant: all, a number of them, or a list of indices and UUIDs."""
    if value == "all":
        return (), None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return (), value
    if not isinstance(value, list) or not value:
        raise wrong(f"expected all, a number of devices, or a list of indices and UUIDs, got {described(value)}")
    if unknown := [index for index, device in enumerate(value) if not _ID.fullmatch(str(device))][: MAX_FAULTS + 1]:
        expected = "expected an index (0, 0:1) or a UUID"
        faults = [fault(f"{expected}, got {described(value[index])}", index) for index in unknown]
        raise ValidationError.from_exception_data("devices", faults)
    return tuple(map(str, value)), None


class _ResourceSection(Section):
    name: str = Field(pattern=f"^{_RESOURCE}$", description="nvidia.com/gpu or nvidia.com/mig-PROFILE")
    replicas: int = Field(ge=1, le=MAX_REPLICAS)
    rename: Text = ""
    devices: Annotated[_Devices, PlainValidator(_devices)] = ((), None)

    def rule(self, path: str, settings: SharingSettings, gpus: tuple[DeviceType, ...]) -> SharingRule:
        """Return the resource as a rule; as in the device plugin, a single replica is the whole device."""
        found = re.fullmatch(_RESOURCE, self.name)
        profile = found["profile"] if found else None
        ids, first = self.devices
        match = DeviceMatch(
            types=(DeviceType.MIG,) if profile else gpus, profiles=(profile,) if profile else (), ids=ids, first=first
        )
        title = f"{path} ({self.name})"
        if self.replicas == 1:
            return SharingRule(title, match)
        return SharingRule(title, match, ShareMode.REPLICAS, self.replicas, None, settings)


class _WaySection(Section):
    fail_requests_greater_than_one: bool = False
    rename_by_default: bool = False
    resources: list[_ResourceSection] = Field([], max_length=MAX_RESOURCES)

    def notes(self, path: str) -> Iterator[str]:
        """Yield what has no effect in a DRA driver."""
        if self.fail_requests_greater_than_one:
            yield f"{path}.failRequestsGreaterThanOne has no effect here: a request for two shares gets two shares"
        if self.rename_by_default:
            yield f"{path}.renameByDefault has no effect here: shares have a device type of their own"
        for number, resource in enumerate(self.resources):
            if resource.rename:
                name = f"{path}.resources[{number}].rename"
                yield f"{name} has no effect here: device classes name the kinds of shares"


class _SharingSection(Section):
    time_slicing: _WaySection | None = None
    mps: _WaySection | None = None

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault for a second way of sharing."""
        if {"timeSlicing", "mps"} <= self._given:
            yield fault("does not go with timeSlicing: a device can only be shared in one way", "mps")


class DevicePluginFile(Section):
    """The whole file; what concerns the device plugin alone may be anything."""

    version: Literal["v1"]
    flags: Any = None
    resources: Any = None
    imex: Any = None
    sharing: _SharingSection = _SharingSection()

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault if the file can't say what separated tenants need."""
        resources = self.sharing.mps.resources if self.sharing.mps else []
        if self._context.tenants is Tenants.NAMESPACE and any(resource.replicas > 1 for resource in resources):
            needed = "which mps.tenants=namespace requires: write a file of version rules/v1"
            yield fault(f"mps can't name namespaces, {needed}", "sharing")

    def sharing_rules(self) -> SharingRules:
        """Return the rules in their order, and what has no effect."""
        is_single = isinstance(self.flags, dict) and self.flags.get("migStrategy") == "single"
        gpus = (DeviceType.GPU, DeviceType.MIG) if is_single else (DeviceType.GPU,)
        ways: tuple[tuple[str, _WaySection | None, SharingSettings], ...] = (
            ("timeSlicing", self.sharing.time_slicing, TimeSlicingSettings()),
            ("mps", self.sharing.mps, MpsSettings(multi_user=True)),  # its pods' users are not known in advance
        )
        rules = [
            resource.rule(f"sharing.{way}.resources[{number}]", settings, gpus)
            for way, section, settings in ways
            for number, resource in enumerate(section.resources if section else ())
        ]
        notes = [note for way, section, _ in ways if section for note in section.notes(f"sharing.{way}")]
        return SharingRules(tuple(rules), notes=tuple(notes))
