"""Recovery: records for a lost ledger, read back from the CDI files of prepared claims.

A file's name holds the claim's UID, and its device names hold the devices (and share ids). The claim's own name, its
requests and whether it had admin access are not in the file: such a record holds every device of its file until the API
has more of it (`gone_claims`), the claim is prepared again, or it is unprepared. A partition that was made for the
claim is recorded in a variable with its UUID and the boot; its place is known only to the hardware, which is asked when
the partition is undone. How the claim's devices are shared is recorded in another variable.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.plan import CdiFileStep, MigPartitionStep
from dra_driver.model.wire import Wire
from dra_driver.plugin.effects.sharing.holders import EFFECT_ENV, step_of_env
from dra_driver.plugin.effects.steps import OWNER_ENV
from dra_driver.plugin.ledger.record import ClaimState, Record
from dra_driver.plugin.mig.partitioner import US
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_SHARE = re.compile(r"(.+)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")


def recover_from(store: CdiStore, driver: str) -> Callable[[], tuple[Record, ...]]:
    """Return the function that a Ledger calls when it has to begin again."""
    return lambda: tuple(_records(store, driver))


def has_claim_file(store: CdiStore, driver: str, uid: str) -> bool:
    """Return whether the claim's CDI file exists."""
    return (store.root / ids.claim_file(driver, uid)).exists()


def made_partitions(store: CdiStore, file: str, uid: str) -> Iterator[Wire]:
    """Yield the steps that made partitions, as recorded in a claim's CDI file: UUID and boot, but not the GPU."""
    for entry in (store.read(file) or {}).get("devices") or ():
        env = (entry.get("containerEdits") or {}).get("env") or ()
        for value in (v.partition("=")[2] for v in env if v.startswith(OWNER_ENV)):
            partition_uuid, _, boot_id = value.rpartition("/")  # UUIDs of drivers before 470 contain slashes
            device = str(entry.get("name", "")).removeprefix(f"{uid}-")
            made = {"bootId": boot_id, "owner": US, "uuid": partition_uuid}
            yield {"kind": MigPartitionStep.kind, "key": device, "gpu": None, **made}


def _records(store: CdiStore, driver: str) -> Iterator[Record]:
    for file in store.list(ids.vendor(driver)):
        uid = ids.claim_uid_of(driver, file)
        if uid is None:
            continue
        claim = AllocatedClaim(uid, "", "", tuple(_devices(store, file, uid)))
        if not claim.devices:
            log.warning("CDI file names no device, so the claim will hold none", extra=fields(file=file, claim_uid=uid))
        yield Record(
            uid=uid,
            namespace="",
            name="",
            state=ClaimState.RECOVERED,
            boot_id="",
            allocation=claim.record(),
            steps=(
                *made_partitions(store, file, uid),
                *_shared(store, file),
                {"kind": CdiFileStep.kind, "file": file},
            ),
        )


def _shared(store: CdiStore, file: str) -> Iterator[Wire]:
    """Yield the steps that shared devices: one for each device, however many shares of it the claim has."""
    steps: dict[str, Wire] = {}
    for entry in (store.read(file) or {}).get("devices") or ():
        for value in _values(entry, EFFECT_ENV):
            try:
                step = step_of_env(value)
            except (KeyError, TypeError, ValueError) as exc:
                log.warning(
                    "CDI file has a record of sharing that can't be read", extra=fields(file=file, err=str(exc))
                )
            else:
                steps[step["key"]] = step
    yield from steps.values()


def _values(entry: Mapping[str, Any], variable: str) -> Iterator[str]:
    env = (entry.get("containerEdits") or {}).get("env") or ()
    return (text.partition("=")[2] for text in env if text.startswith(f"{variable}="))


def _devices(store: CdiStore, file: str, uid: str) -> Iterator[AllocatedDevice]:
    for entry in (store.read(file) or {}).get("devices") or ():
        name = str(entry.get("name", "")).removeprefix(f"{uid}-")
        share = _SHARE.fullmatch(name)
        yield AllocatedDevice(
            request="", pool="", device=share[1] if share else name, share_id=share[2] if share else None
        )
