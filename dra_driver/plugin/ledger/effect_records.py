"""Effect records: what was done to a shared device, as the ledger and the claims' CDI files record it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dra_driver.model.records import Key, RecordForm
from dra_driver.model.sharing import (
    SHARED_DEVICE,
    SharedDevice,
    SharingSettings,
    record_of_settings,
    settings_of_record,
)
from dra_driver.model.wire import Wire


class Progress(enum.StrEnum):
    """How far an effect has been applied. One that is APPLYING may or may not be in force."""

    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class DeviceEffect:
    """What was done to a device, in which boot, and which settings were found on it before.

    Several claims record one effect, and their records are equal at every stage of it: `progress` is not compared.
    """

    device: SharedDevice
    settings: SharingSettings
    found: Wire
    boot_id: str
    progress: str = field(default=Progress.APPLYING, compare=False)


EFFECT = RecordForm(
    DeviceEffect,
    without=("progress",),
    device=Key("device", SHARED_DEVICE.write, SHARED_DEVICE.read),
    settings=Key("settings", record_of_settings, settings_of_record),
    boot_id=Key("bootId"),
)
"""The form of an effect in a claim's step and in its CDI file, where its progress is not recorded."""
