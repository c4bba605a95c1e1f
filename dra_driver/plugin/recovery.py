"""Recovery: records for a lost ledger, read back from the CDI files of prepared claims.

A file's name holds the claim's UID, its device names hold the devices (and share ids). The claim's own name, its
requests and whether it had admin access are not in there: such a record holds every device of its file until the API
tells more (`abandoned`), the claim is prepared again, or it is unprepared. A partition that was made for the claim is
told by a variable with its UUID and the boot; where it is, only the hardware can say, and is asked when it is undone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.plan import CdiFileStep, MigPartitionStep
from dra_driver.model.wire import Wire
from dra_driver.plugin.effects import OWNER_ENV
from dra_driver.plugin.partitioner import US
from dra_driver.plugin.record import Record, State
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_SHARE = re.compile(r"(.+)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")


def recover_from(store: CdiStore, driver: str) -> Callable[[], tuple[Record, ...]]:
    """Give the function that a Ledger calls when it has to begin again."""
    return lambda: tuple(_records(store, driver))


def made_partitions(store: CdiStore, file: str, uid: str) -> Iterator[Wire]:
    """Give the steps that made partitions, as a claim's CDI file tells them: UUID and boot, but not on which GPU."""
    for entry in (store.read(file) or {}).get("devices") or ():
        env = (entry.get("containerEdits") or {}).get("env") or ()
        for value in (v.partition("=")[2] for v in env if v.startswith(f"{OWNER_ENV}=")):
            partition_uuid, _, boot_id = value.partition("/")
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
            log.warning("CDI file names no device: the claim will hold none", extra=fields(file=file, claim_uid=uid))
        yield Record(
            uid=uid,
            namespace="",
            name="",
            state=State.RECOVERED,
            boot_id="",
            allocation=claim.record(),
            steps=(*made_partitions(store, file, uid), {"kind": CdiFileStep.kind, "file": file}),
        )


def _devices(store: CdiStore, file: str, uid: str) -> Iterator[AllocatedDevice]:
    for entry in (store.read(file) or {}).get("devices") or ():
        name = str(entry.get("name", "")).removeprefix(f"{uid}-")
        share = _SHARE.fullmatch(name)
        yield AllocatedDevice(
            request="", pool="", device=share[1] if share else name, share_id=share[2] if share else None
        )
