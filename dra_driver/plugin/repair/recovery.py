"""Recovery: records for a lost ledger, read back from the CDI files of prepared claims.

A file's name contains the claim's UID, and its device names contain the devices (and share ids). The claim's own name,
its requests, and whether it had admin access are not in the file. Such a record therefore holds every device of its
file until the API provides the rest (`gone_claims`), or the claim is prepared again or unprepared. If a partition was
made for the claim, an environment variable in the file has its UUID and the boot; only the hardware knows its
placement, and is asked when the partition is undone. Another variable records how the claim's devices are shared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.allocated.allocated_claim import AllocatedClaim, AllocatedDevice
from dra_driver.claims.allocated.records import record_of_claim
from dra_driver.plugin.effects.file_records import EFFECT_ENV, partitions_of_env, sharing_of_env
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState
from dra_driver.plugin.ledger.recorded_steps import RecordedFile, RecordedPartition, RecordedSharing
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_SHARE = re.compile(r"(.+)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")


class CdiClaimFiles:
    """The CDI files of one driver's claims."""

    def __init__(self, store: CdiStore, driver: str) -> None:
        self._store, self._driver = store, driver

    def recover(self) -> tuple[ClaimRecord, ...]:
        """Return a record for each claim that has a file."""
        return tuple(_records(self._store, self._driver))

    def has(self, uid: str) -> bool:
        """Return whether a claim has a file."""
        return (self._store.root / ids.claim_file(self._driver, uid)).exists()


def made_partitions(store: CdiStore, file: str, uid: str) -> Iterator[RecordedPartition]:
    """Yield the partitions that were made for a claim, as its CDI file records them: UUID and boot, but no GPU."""
    for entry in _entries(store, file):
        device = str(entry.get("name", "")).removeprefix(f"{uid}-")
        yield from partitions_of_env(device, _env(entry))


def _records(store: CdiStore, driver: str) -> Iterator[ClaimRecord]:
    for file in store.list(ids.vendor(driver)):
        uid = ids.claim_uid_of(driver, file)
        if uid is None:
            continue
        claim = AllocatedClaim(uid, "", "", tuple(_devices(store, file, uid)))
        if not claim.devices:
            log.warning("CDI file names no device, so the claim will hold none", extra=fields(file=file, claim_uid=uid))
        yield ClaimRecord(
            uid=uid,
            namespace="",
            name="",
            state=ClaimState.RECOVERED,
            boot_id="",
            allocation=record_of_claim(claim),
            steps=(
                *made_partitions(store, file, uid),
                *_shared(store, file),
                RecordedFile(file),
            ),
        )


def _shared(store: CdiStore, file: str) -> Iterator[RecordedSharing]:
    """Yield the steps that shared devices: one for each device, even if the claim has several shares of it."""
    steps: dict[str, RecordedSharing] = {}
    for entry in _entries(store, file):
        for variable in (text for text in _env(entry) if text.startswith(f"{EFFECT_ENV}=")):
            try:
                step = sharing_of_env(variable)
            except (KeyError, TypeError, ValueError) as exc:
                log.warning(
                    "CDI file has a record of sharing that can't be read", extra=fields(file=file, err=str(exc))
                )
            else:
                steps[step.key] = step
    yield from steps.values()


def _entries(store: CdiStore, file: str) -> Sequence[Mapping[str, Any]]:
    return (store.read(file) or {}).get("devices") or ()


def _env(entry: Mapping[str, Any]) -> Sequence[str]:
    return (entry.get("containerEdits") or {}).get("env") or ()


def _devices(store: CdiStore, file: str, uid: str) -> Iterator[AllocatedDevice]:
    for entry in _entries(store, file):
        name = str(entry.get("name", "")).removeprefix(f"{uid}-")
        share = _SHARE.fullmatch(name)
        yield AllocatedDevice(
            request="", pool="", device=share[1] if share else name, share_id=share[2] if share else None
        )
