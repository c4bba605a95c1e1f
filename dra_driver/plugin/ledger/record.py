"""Claim record: the ledger's record of one claim, and how it is written as a row.

The steps are those of `recorded_steps`; an agent undoes those whose kind it knows and keeps the others. Keys and
columns that a newer agent added are ignored, but not lost.
"""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.claims.allocated.records import (
    claim_of_record,
    names_of_record,
    owned_of_record,
    pods_of_record,
    record_of_claim,
    record_with_pods,
)
from dra_driver.claims.plan import PreparePlan
from dra_driver.model.errors import DriverError, LedgerError
from dra_driver.model.names import replicated_name
from dra_driver.model.records import Key, RecordForm, json_object, json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.plugin.ledger.step_records import steps_of_records, text_of_steps

S = TypeVar("S", bound=RecordedStep)


_WAS_LOST = "gpuWasLost"  # beside the keys of the allocation


class ClaimState(enum.StrEnum):
    """How far a claim has got. Any other value was written by a newer agent and is treated as PREPARED."""

    PREPARING = "preparing"  # the intent is recorded, effects are under way
    PREPARED = "prepared"  # all effects are done; the kubelet may have been answered
    UNPREPARING = "unpreparing"  # effects are being undone
    RECOVERED = "recovered"  # read back from the claim's CDI file after the ledger was lost


UNFINISHED = (ClaimState.PREPARING, ClaimState.UNPREPARING)


class ClaimRecord(NamedTuple):
    """One claim. `allocation` is what `record_of_claim` returns.

    `gone_since` is the time since which the claim has been missing from the API, in seconds of boot time in the boot
    `gone_boot`; None if it exists. `planned` is the claim as this agent planned it, which saves reading `allocation`.
    """

    uid: str
    namespace: str
    name: str
    state: str
    boot_id: str
    allocation: Wire
    steps: tuple[RecordedStep, ...]
    gone_since: float | None = None
    gone_boot: str = ""
    planned: AllocatedClaim | None = None

    @property
    def full_name(self) -> str:
        """Return the claim's namespace and name, for messages."""
        return f"{self.namespace}/{self.name}" if self.name else f"(name unknown, UID {self.uid})"

    @property
    def pods(self) -> tuple[str, ...]:
        """Return the UIDs of the pods for which the claim was reserved."""
        return pods_of_record(self.allocation)

    @property
    def was_lost(self) -> bool:
        """Return whether a GPU of the claim was lost since the claim was prepared: its programs can't use it again."""
        return bool(self.allocation.get(_WAS_LOST))

    def with_loss(self) -> Wire:
        """Return the allocation with the fact that a GPU of the claim was lost."""
        return {**self.allocation, _WAS_LOST: True}

    def with_pods(self, pods: Iterable[str]) -> Wire:
        """Return the allocation with these pods added to those that it has."""
        return record_with_pods(self.allocation, pods)

    def steps_of(self, kind: type[S]) -> tuple[S, ...]:
        """Return the recorded steps of a type."""
        return tuple(step for step in self.steps if isinstance(step, kind))

    def device_names(self) -> frozenset[str]:
        """Return the names of all devices of the claim, including those that it has with admin access."""
        return names_of_record(self.allocation)

    def owned(self) -> tuple[tuple[str, str], ...]:
        """Return the devices that the claim owns, each with its share id ("" for a device that is not a share)."""
        return owned_of_record(self.allocation)

    def owned_names(self) -> tuple[str, ...]:
        """Return the names of the devices that the claim owns."""
        return tuple(device for device, _ in self.owned())

    def exclusive_names(self) -> tuple[str, ...]:
        """Return the names of the devices that the claim has to itself, neither shares nor replicas."""
        return tuple(device for device, share_id in self.owned() if not share_id and not replicated_name(device))

    def claim(self) -> AllocatedClaim:
        """Return the claim as it was allocated. Raises: LedgerError("ledger.record") if it can't be read."""
        if self.planned is not None:
            return self.planned
        try:
            return claim_of_record(self.uid, self.namespace, self.name, self.allocation)
        except (DriverError, KeyError, TypeError) as exc:
            raise LedgerError("record", f"ledger: allocation of claim {self.full_name} can't be read: {exc}") from exc


def record_of_plan(
    plan: PreparePlan, boot_id: str, steps: Iterable[RecordedStep], state: ClaimState = ClaimState.PREPARING
) -> ClaimRecord:
    """Return the record of a plan; by default, that of the intent to carry it out. `steps` are its recorded steps."""
    return ClaimRecord(
        uid=plan.claim.uid,
        namespace=plan.claim.namespace,
        name=plan.claim.name,
        state=state,
        boot_id=boot_id,
        allocation=record_of_claim(plan.claim),
        steps=tuple(steps),
        planned=plan.claim,
    )


def record_of_row(row: sqlite3.Row) -> ClaimRecord:
    """Return the record in a row; columns that the row lacks have their defaults. Raises: LedgerError("record")."""
    try:
        return _ROW.read(dict(row))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise LedgerError("record", f"ledger: the row of claim {row['uid']} can't be read: {exc}") from exc


NEVER_GONE: Wire = {"gone_since": None, "gone_boot": ""}  # the columns that `row_of_record` leaves to their defaults


def row_of_record(record: ClaimRecord) -> Wire:
    """Return the columns of a record, without `gone_since` and `gone_boot` if they have their defaults."""
    return _ROW.write(record)


def _steps_of_text(text: str) -> tuple[RecordedStep, ...]:
    return steps_of_records(json.loads(text))


_ROW = RecordForm(
    ClaimRecord,
    without=("planned",),
    namespace=Key("namespace", missing=""),
    name=Key("name", missing=""),
    state=Key("state", write=str, missing=str(ClaimState.PREPARED)),
    boot_id=Key("boot_id", missing=""),
    allocation=Key("allocation", json_text, json_object),
    steps=Key("steps", text_of_steps, _steps_of_text),
    gone_since=Key("gone_since", left_out=None),
    gone_boot=Key("gone_boot", left_out=""),
)
