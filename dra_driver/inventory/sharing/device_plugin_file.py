"""The configuration file of NVIDIA's device plugin, read for its sharing settings.

In: the fields of a file with `version: v1`. Out: rules. `sharing.timeSlicing.resources` and `sharing.mps.resources`
have the same meaning as for the device plugin; a setting that has no effect in a DRA driver is reported. The
rest of the file concerns the device plugin itself and is ignored, except for `flags.migStrategy`: with `single`, its
GPUs are MIG devices.

Source: NVIDIA k8s-device-plugin, api/config/v1 (names and meanings of the fields).
"""

from __future__ import annotations

import re

from dra_driver.documents.fields import Fields
from dra_driver.inventory.sharing.rules import MAX_REPLICAS, DeviceMatch, SharingRule, SharingRules
from dra_driver.model.shares import DeviceType, ShareMode
from dra_driver.model.sharing import MpsSettings, SharingSettings, TimeSlicingSettings

VERSION = "v1"
MAX_RESOURCES = 64
_OTHER = ("resources", "imex")  # these concern the device plugin alone
_RESOURCE = re.compile(r"(nvidia\.com/)?(?P<name>gpu|mig-(?P<profile>[0-9]+(c\.[0-9]+)?g\.[0-9]+gb[.a-z]*))(\.shared)?")
_ID = re.compile(r"[0-9]{1,3}(:[0-9]{1,2})?|(GPU|MIG)-[0-9A-Za-z/-]{1,60}")


def decode_device_plugin(root: Fields) -> SharingRules:
    """Return the rules of the file; faults are collected in the fields' own list."""
    notes: list[str] = []
    for name in _OTHER:
        root.any(name)
    flags = root.any("flags")
    is_single = isinstance(flags, dict) and flags.get("migStrategy") == "single"
    gpus = (DeviceType.GPU, DeviceType.MIG) if is_single else (DeviceType.GPU,)
    sharing = root.section("sharing")
    rules = [
        *_rules(sharing, "timeSlicing", TimeSlicingSettings(), gpus, notes),
        *_rules(sharing, "mps", MpsSettings(multi_user=True), gpus, notes),  # its pods' users are not known in advance
    ]
    if sharing.has("timeSlicing") and sharing.has("mps"):
        sharing.fault("mps", "does not go with timeSlicing: a device can only be shared in one way")
    sharing.close()
    return SharingRules(tuple(rules), notes=tuple(notes))


def _rules(
    sharing: Fields, way: str, settings: SharingSettings, gpus: tuple[DeviceType, ...], notes: list[str]
) -> list[SharingRule]:
    section = sharing.section(way)
    if section.optional_flag("failRequestsGreaterThanOne"):
        notes.append(
            f"sharing.{way}.failRequestsGreaterThanOne has no effect here: a request for two shares gets two shares"
        )
    if section.optional_flag("renameByDefault"):
        notes.append(f"sharing.{way}.renameByDefault has no effect here: shares have a device type of their own")
    rows = section.rows("resources", maximum=MAX_RESOURCES)
    named = [(row, f"sharing.{way}.resources[{number}]") for number, row in enumerate(rows)]
    rules = [_rule(row, name, settings, gpus, notes) for row, name in named]
    section.close()
    return rules


def _rule(
    row: Fields, name: str, settings: SharingSettings, gpus: tuple[DeviceType, ...], notes: list[str]
) -> SharingRule:
    """Read one resource; as in the device plugin, a single replica is the whole device."""
    resource = row.text("name", pattern=_RESOURCE.pattern, what="nvidia.com/gpu or nvidia.com/mig-PROFILE")
    replicas = row.integer("replicas", 1, MAX_REPLICAS)
    if row.optional_text("rename"):
        notes.append(f"{name}.rename has no effect here: device classes name the kinds of shares")
    ids, first = _devices(row)
    row.close()
    found = _RESOURCE.fullmatch(resource)
    profile = found["profile"] if found else None
    match = DeviceMatch(
        types=(DeviceType.MIG,) if profile else gpus,
        profiles=(profile,) if profile else (),
        ids=ids,
        first=first,
    )
    title = f"{name} ({resource})"
    return (
        SharingRule(title, match, ShareMode.REPLICAS, replicas, None, settings)
        if replicas > 1
        else SharingRule(title, match)
    )


def _devices(row: Fields) -> tuple[tuple[str, ...], int | None]:
    """Read which devices are meant: all, a number of them, or a list of indices and UUIDs."""
    value = row.any("devices")
    if value is None or value == "all":
        return (), None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return (), value
    if isinstance(value, list) and value:
        ids = tuple(str(one) for one in value)
        for index, one in enumerate(ids):
            if not _ID.fullmatch(one):
                row.fault(f"devices[{index}]", f"expected an index (0, 0:1) or a UUID, got {one!r}")
        return ids, None
    row.fault("devices", f"expected all, a number of devices, or a list of indices and UUIDs, got {value!r}")
    return (), None
