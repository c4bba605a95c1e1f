"""File records: partitions and sharing as recorded beside a claim's CDI file, in case the ledger is lost.

Each record is an environment variable of a device in the file. `recovery` reads what this module writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from dra_driver.claims.steps.sharing import SharingStep
from dra_driver.model.records import json_text
from dra_driver.model.sharing import TimeSlicingSettings
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.effect_records import EFFECT, DeviceEffect
from dra_driver.plugin.ledger.recorded_steps import US, RecordedPartition, RecordedSharing

OWNER_ENV = "DRA_DRIVER_PARTITION"
EFFECT_ENV = "DRA_DRIVER_SHARING"


def partition_env(recorded: RecordedPartition) -> tuple[str, ...]:
    """Return the variable that records a partition; none for a partition that an administrator made.

    Each partition has its own variable name, because older agents wrote the variables into the document, where a
    container with several partitions would otherwise see only the last.
    """
    name = f"{OWNER_ENV}_{recorded.device.upper().replace('-', '_')}"
    return (f"{name}={recorded.uuid}/{recorded.boot_id}",) if recorded.owner == US else ()


def partitions_of_env(device: str, env: Iterable[str]) -> Iterator[RecordedPartition]:
    """Yield the partitions that a device's variables record: their UUID and boot, but no GPU."""
    for value in (variable.partition("=")[2] for variable in env if variable.startswith(OWNER_ENV)):
        uuid, _, boot_id = value.rpartition("/")  # UUIDs of drivers before 470 contain slashes
        yield RecordedPartition(device, None, boot_id=boot_id, owner=US, uuid=uuid)


def sharing_env(step: SharingStep, effect: DeviceEffect | None) -> tuple[str, ...]:
    """Return the variable that records the effect on a shared device; none for time slices of the usual length."""
    if effect is None or step.settings == TimeSlicingSettings():
        return ()
    return (f"{EFFECT_ENV}={json_text(EFFECT.write(effect))}",)


def sharing_of_env(variable: str) -> RecordedSharing:
    """Return the step that a variable of `sharing_env` records. Raises: KeyError, TypeError, ValueError."""
    effect = EFFECT.read(_object(variable.partition("=")[2]))
    return RecordedSharing(effect.device, effect.settings, effect=effect)


def _object(text: str) -> Wire:
    """Return a JSON object. Raises: ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a value of the wrong form, whatever its type
    return found
