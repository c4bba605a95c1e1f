"""ResourceQuotas: counts of the device plugin's resources become counts of devices of a class.

In: a ResourceQuota, changed in place. MIG profiles get no quotas of their own, since one class hands out all profiles;
that is reported.

Source: Kubernetes, ResourceQuota: `requests.<resource>` counts an extended resource, and
`<class>.deviceclass.resource.k8s.io/devices` the devices that claims request of a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.flags import DEFAULT_VENDOR, registered_as
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.tools.migrate.report import ReportSubject

# DeviceKind: the devices behind an extended resource of a device plugin, in terms of classes and selectors.

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


# Extended resources of the device plugins of AMD, Intel and Gaudi.

# Domains in which such plugins name resources and labels, and who sets the labels.
LABELLERS = {
    "amd.com/": "AMD's node labeller",
    "gpu.intel.com/": "Intel's GPU plugin, or a rule of Node Feature Discovery,",
    "habana.ai/": "Gaudi's feature discovery",
}
_AMD_PARTITION = re.compile(r"amd\.com/(([a-z]{3})_nps[0-9]{1,2})")
_WHOLE = {
    "amd.com/gpu": DeviceKind(vendor="amd"),
    "gpu.intel.com/i915": DeviceKind(vendor="intel", profile="i915"),
    "gpu.intel.com/xe": DeviceKind(vendor="intel", profile="xe"),
    "gpu.intel.com/i915_monitoring": DeviceKind(vendor="intel", profile="i915", is_monitor=True),
    "gpu.intel.com/xe_monitoring": DeviceKind(vendor="intel", profile="xe", is_monitor=True),
    "habana.ai/gaudi": DeviceKind(vendor="gaudi"),
}
# The same names inside a longer text, as keys or at the end of JSON pointers ("/" is "~1" there).
INSIDE_TEXT = (
    r"(?:amd\.com{slash}(?:gpu|[a-z]{{3}}_nps[0-9]{{1,2}})"
    r"|gpu\.intel\.com{slash}(?:i915|xe)(?:_monitoring)?|habana\.ai{slash}gaudi)"
)


def kind_of_another_vendor(resource: str) -> DeviceKind | None:
    """Return the kind of device that a resource stands for; None if no such plugin has it.

    >>> kind_of_another_vendor("amd.com/cpx_nps4").device_class, kind_of_another_vendor("gpu.intel.com/tiles")
    ('gpu.amd.com', None)
    """
    if resource in _WHOLE:
        return _WHOLE[resource]
    found = _AMD_PARTITION.fullmatch(resource)
    if found is None:
        return None
    return DeviceKind(is_partition=found[2] != "spx", profile=found[1], vendor="amd")


def labeller_of(text: str) -> str | None:
    """Return who sets the labels (or offers the resources) of a name's domain; None for other domains."""
    return next((labeller for domain, labeller in LABELLERS.items() if text.startswith(domain)), None)


# Extended resources of device plugins, read from containers: which kind of device, and how many.

WHOLE = "nvidia.com/gpu"
_PARTITION = re.compile(r"nvidia\.com/mig-((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb)([-.][a-z.]+)?")
SHARED = ".shared"
QUOTA = "requests."


Known = Mapping[str, DeviceKind]
NOTHING_KNOWN: Known = MappingProxyType({})


def kind_of(resource: str, known: Known = NOTHING_KNOWN) -> DeviceKind | None:
    """Return the kind of device that a resource stands for; None if it is not a resource of the device plugin.

    >>> kind_of("nvidia.com/mig-1g.10gb.me").words, kind_of("nvidia.com/gpu.shared").device_class, kind_of("cpu")
    ('MIG partition 1g.10gb+me', 'gpu-share.nvidia.com', None)
    """
    if resource in known:
        return known[resource]
    stem = resource.removesuffix(SHARED)
    is_share = stem != resource
    if stem == WHOLE:
        return DeviceKind(is_share=is_share)
    found = _PARTITION.fullmatch(stem)
    if found is None:
        return kind_of_another_vendor(resource)
    rest = found[2] or ""
    return DeviceKind(True, is_share, found[1] + (f"+{rest[1:]}" if rest.startswith(".") else rest))


def rows_of(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return the mappings of a list with their positions; whatever is not a mapping, or not a list, is skipped."""
    return (
        [(number, one) for number, one in enumerate(value) if isinstance(one, dict)] if isinstance(value, list) else []
    )


_MAX_COUNT = 100_000  # a higher number of devices for one container is taken for a mistake


def counts_of(resources: Any, at: str, known: Known = NOTHING_KNOWN) -> dict[str, int]:
    """Return how many of each of the device plugin's resources a container requests, including counts of 0.

    Raises: InputError("input.resource") if a count is not a whole number, or if requests differ from limits.
    """
    found: dict[str, int] = {}
    for field in ("limits", "requests"):
        amounts = resources.get(field) if isinstance(resources, Mapping) else None
        for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if kind_of(name, known) is None:
                continue
            count = whole_number(amount, f"{at}: {field}: {name}")
            if found.setdefault(name, count) != count:
                raise InputError(
                    "resource",
                    f"{at}: {name}: requests ({count}) differ from limits ({found[name]})",
                    hint="Kubernetes requires them to be equal for such a resource; leave the requests out",
                )
    return found


def whole_number(amount: Any, at: str) -> int:
    """Return a count as an int.

    Raises: InputError("input.resource") if it is not a whole number from 0 to 100,000.
    """
    hint = "write a whole number; fill in variables (envsubst, helm template) before migrating"
    if isinstance(amount, bool) or not isinstance(amount, int | str | float):
        raise InputError("resource", f"{at}: {amount!r} is not a whole number", hint=hint)
    try:
        exact = Quantity.parse(str(amount)).value
    except QuantityError as fault:
        raise InputError("resource", f"{at}: {str(amount)!r} is not a whole number", hint=hint) from fault
    if exact < 0 or exact != int(exact) or exact > _MAX_COUNT:
        raise InputError("resource", f"{at}: {str(amount)!r} is not a whole number", hint=hint)
    return int(exact)


_DEVICES = "deviceclass.resource.k8s.io/devices"


def migrate_quota(wire: dict[str, Any], known: Known, subject: ReportSubject) -> None:
    """Migrate a quota in place. Raises: InputError if a count is not a whole number."""
    spec = wire.get("spec")
    hard = spec.get("hard") if isinstance(spec, dict) else None
    if not isinstance(hard, dict):
        return
    found = _counted(hard, known, subject)
    if not found:
        return
    sums: dict[str, int] = {}
    for name, (kind, count) in found.items():
        if name.startswith(QUOTA) and not kind.is_monitor:
            key = f"{kind.device_class}.{_DEVICES}"
            sums[key] = sums.get(key, 0) + count
    made = _replaced(hard, found, sums, subject)
    _report_profiles(found, subject)
    hard.clear()
    hard.update(made)


def _replaced(
    hard: dict[str, Any], found: dict[str, tuple[DeviceKind, int]], sums: dict[str, int], subject: ReportSubject
) -> dict[str, Any]:
    """Return all counts of the quota, the new ones in the places of the old ones."""
    made: dict[str, Any] = {}
    for name, amount in hard.items():
        if name not in found:
            made[name] = amount
            continue
        kind, count = found[name]
        key = f"{kind.device_class}.{_DEVICES}"
        if kind.is_monitor:
            _report_monitor(name, subject)
        elif not name.startswith(QUOTA):
            _report_no_limit(name, subject)
        elif key in hard:
            _report_there(name, key, subject)
        else:
            made.setdefault(key, sums[key] if isinstance(amount, int) else str(sums[key]))
            _report_count(name, count, key, sums[key], subject)
    return made


def _counted(hard: dict[str, Any], known: Known, subject: ReportSubject) -> dict[str, tuple[DeviceKind, int]]:
    """Return the counts of the device plugin's resources, each with the kind of device."""
    found = {}
    for name, amount in hard.items():
        kind = kind_of(name.removeprefix(QUOTA).removeprefix("limits."), known)
        if kind is not None:
            found[name] = kind, whole_number(amount, f"{subject.name}: spec.hard: {name}")
    return found


def _report_count(name: str, count: int, key: str, total: int, subject: ReportSubject) -> None:
    more = "" if count == total else f" (with others of the class: {total})"
    subject.changed(
        "quota",
        f"{name}: {count} became {key}{more}",
        "a quota on the resource does not count claims; this one counts the devices that claims ask for",
        "spec",
        "hard",
    )


def _report_there(name: str, key: str, subject: ReportSubject) -> None:
    subject.changed("quota", f"{name} was taken out", f"the quota already has {key}", "spec", "hard")


def _report_no_limit(name: str, subject: ReportSubject) -> None:
    why = "quotas of such resources are written requests.<name>; this one never counted anything"
    subject.changed("quota", f"{name} was taken out", why, "spec", "hard")


def _report_monitor(name: str, subject: ReportSubject) -> None:
    why = "a claim with admin access holds no device; a label of the namespace decides whether it may have such claims"
    subject.changed("quota", f"{name} was taken out", why, "spec", "hard")


def _report_profiles(found: dict[str, tuple[DeviceKind, int]], subject: ReportSubject) -> None:
    profiles = sorted({kind.profile for kind, _ in found.values() if kind.profile and not kind.is_monitor})
    if profiles:
        subject.lost(
            "quota-profile",
            f"one class hands out all profiles: the quota of {', '.join(profiles)} counts devices of any profile",
            "for a quota per profile, create a DeviceClass for each profile and name it in the claims",
            "spec",
            "hard",
        )
