"""Claim record: the ledger's record of one claim, and how it is written as a row.

The steps are those of `recorded_steps`; an agent undoes those whose kind it knows and keeps the others. Keys and
columns that a newer agent added are ignored, but not lost.
"""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dra_driver.base.errors import DriverError, LedgerError
from dra_driver.base.wire import (
    CLIENT_LIMITS,
    SHARED_DEVICE,
    Key,
    RecordForm,
    Wire,
    json_object,
    json_text,
    record_of_settings,
    settings_of_record,
)
from dra_driver.hardware.facts import MigProfile
from dra_driver.hardware.vfio import UNKNOWN, PciIdentity
from dra_driver.node.claims.allocated import FROM_CLASS, RESULT_KEYS, AllocatedClaim, AllocatedDevice, ConfigEntry
from dra_driver.node.claims.config import decode_config
from dra_driver.node.claims.device_config import DeviceConfig
from dra_driver.node.claims.plan import PreparePlan
from dra_driver.node.ledger.recorded_steps import (
    EFFECT,
    GpuReference,
    MovedFunction,
    RecordedComputeUnits,
    RecordedFile,
    RecordedLimit,
    RecordedMode,
    RecordedPartition,
    RecordedPassthrough,
    RecordedSharing,
    RecordedStep,
    UnknownStep,
)
from dra_driver.node.mps.client import MpsChannel

# Step records: recorded steps as the JSON objects in a claim's row, and back, byte for byte.

_KIND, _KEY = "kind", "key"
_GPU = RecordForm(GpuReference, pci_address=Key("pci"))
_PROFILE = RecordForm(MigProfile, starts=Key("starts", write=lambda _: [], read=lambda _: ()))
_FUNCTION = RecordForm(MovedFunction)
_IDENTITY = RecordForm(PciIdentity)
_CHANNEL = RecordForm(MpsChannel, pipe_dir=Key("pipeDir"), shm_dir=Key("shmDir"))


def _functions(records: Iterable[Wire]) -> tuple[MovedFunction, ...]:
    return tuple(map(_FUNCTION.read, records))


def _clients(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: CLIENT_LIMITS.read(limits) for name, limits in record.items()}


def _form(kind: type[RecordedStep], **keys: Key) -> RecordForm[Any]:
    return RecordForm(kind, without=("rest",), **keys)


_FORMS: Mapping[str, RecordForm[Any]] = {
    RecordedFile.kind: _form(RecordedFile),
    RecordedMode.kind: _form(RecordedMode, gpu=Key("gpu", _GPU.write, _GPU.read), boot_id=Key("bootId", left_out=None)),
    RecordedPartition.kind: _form(
        RecordedPartition,
        device=Key(_KEY),
        gpu=Key("gpu", lambda gpu: gpu and _GPU.write(gpu), lambda gpu: gpu and _GPU.read(gpu)),
        profile=Key("profile", _PROFILE.write, _PROFILE.read, left_out=None),
        start=Key("start", left_out=None),
        boot_id=Key("bootId", left_out=None),
        owner=Key("owner", left_out=None),
        uuid=Key("uuid", left_out=None),
        switches_mode=Key("switchesMode", left_out=False),
    ),
    RecordedPassthrough.kind: _form(
        RecordedPassthrough,
        device=Key(_KEY),
        gpu=Key("gpu", _GPU.write, _GPU.read),
        functions=Key("functions", lambda all_: list(map(_FUNCTION.write, all_)), _functions),
        boot_id=Key("bootId", left_out=None),
        pci_identity=Key("pciIdentity", _IDENTITY.write, _IDENTITY.read, left_out=UNKNOWN),
    ),
    RecordedSharing.kind: _form(
        RecordedSharing,
        device=Key("device", SHARED_DEVICE.write, SHARED_DEVICE.read),
        settings=Key("settings", record_of_settings, settings_of_record),
        in_file=Key("inFile", list, tuple),
        clients=Key("clients", lambda by_name: {n: CLIENT_LIMITS.write(c) for n, c in by_name.items()}, _clients),
        effect=Key("effect", EFFECT.write, EFFECT.read, left_out=None),
        channel=Key("channel", _CHANNEL.write, _CHANNEL.read, left_out=None),
    ),
    RecordedLimit.kind: _form(
        RecordedLimit,
        device=Key("device", SHARED_DEVICE.write, SHARED_DEVICE.read),
        limit=Key("limit", read=int),
        pods=Key("pods", list, tuple),
    ),
    RecordedComputeUnits.kind: _form(
        RecordedComputeUnits,
        device=Key("device", SHARED_DEVICE.write, SHARED_DEVICE.read),
        units=Key("units", list, lambda units: tuple(map(int, units))),
    ),
}
STEP_KINDS = frozenset(_FORMS)  # those that this release can read, and so undo
_WITHOUT_KEY = RecordedFile.kind  # the records of this one kind have no "key": their "file" is the key


def text_of_steps(steps: Iterable[RecordedStep]) -> str:
    """Return the steps of a claim as they are in its row."""
    return json_text([record_of_step(step) for step in steps])


def record_of_step(step: RecordedStep) -> Wire:
    """Return a step as a JSON object: the one that it was read from, if there is one."""
    if step.as_recorded is not None:
        return step.as_recorded
    form = _FORMS.get(step.kind)
    if form is None:
        return step.rest
    head = {_KIND: step.kind} if step.kind == _WITHOUT_KEY else {_KIND: step.kind, _KEY: step.key}
    return {**step.rest, **head, **form.write(step)}


def step_of_record(record: Wire) -> RecordedStep:
    """Return the step in a JSON object, or an `UnknownStep` if it can't be read."""
    kind = record.get(_KIND)
    form = _FORMS.get(kind) if isinstance(kind, str) else None
    if form is None:
        return UnknownStep(str(kind), rest=record)
    try:
        rest = form.unknown(record)
        step: RecordedStep = form.read(record, rest={k: v for k, v in rest.items() if k not in (_KIND, _KEY)})
    except (KeyError, TypeError, ValueError, AttributeError):
        return UnknownStep(str(kind), rest=record)
    object.__setattr__(step, "as_recorded", record)
    return step


def steps_of_records(records: Iterable[Wire]) -> tuple[RecordedStep, ...]:
    """Return the steps in a claim's row."""
    return tuple(map(step_of_record, records))


# How an allocated claim is recorded in the ledger, and what is read of such a record.

_DEVICES, _PODS, _POD_NAMES = "devices", "pods", "podNames"  # keys of a record


def record_of_claim(claim: AllocatedClaim) -> Wire:
    """Return the allocation as JSON for the ledger (the claim's UID, namespace and name have their own columns)."""
    return _CLAIM.write(claim)


def claim_of_record(uid: str, namespace: str, name: str, record: Mapping[str, Any]) -> AllocatedClaim:
    """Return the claim from which `record_of_claim` made a record; keys that a newer agent added are ignored."""
    return _CLAIM.read(record, uid=uid, namespace=namespace, name=name)


def devices_of_record(record: Mapping[str, Any]) -> tuple[AllocatedDevice, ...]:
    """Return the devices of a recorded claim. Raises: KeyError for a record that this driver can't have written."""
    return _devices(record.get(_DEVICES) or ())


def pod_names_of_record(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the names, by UID, of the pods for which a recorded claim was reserved."""
    return _pairs(record.get(_POD_NAMES))


def pods_of_record(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the UIDs of the pods for which a recorded claim was reserved."""
    return tuple(map(str, record.get(_PODS) or ()))


def _pairs(names: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((names or {}).items()))


def _devices(records: Sequence[Wire]) -> tuple[AllocatedDevice, ...]:
    return tuple(map(_DEVICE.read, records))


def _configs(records: Sequence[Wire]) -> tuple[ConfigEntry, ...]:
    return tuple(map(_CONFIG.read, records))


_DEVICE = RecordForm(AllocatedDevice, without=(), **RESULT_KEYS, device_class=Key("deviceClass", left_out=""))
_CONFIG = RecordForm(
    ConfigEntry,
    config=Key("parameters", DeviceConfig.record, decode_config),
    requests=Key("requests", list, tuple),
    is_class=Key("source", lambda _: FROM_CLASS, lambda source: source == FROM_CLASS, left_out=False),
)
_CLAIM = RecordForm(
    AllocatedClaim,
    without=("uid", "namespace", "name"),
    devices=Key(_DEVICES, lambda devices: list(map(_DEVICE.write, devices)), _devices),
    configs=Key("configs", lambda configs: list(map(_CONFIG.write, configs)), _configs),
    pods=Key(_PODS, list, lambda pods: tuple(pods or ()), left_out=()),
    pod_names=Key(_POD_NAMES, dict, _pairs, left_out=()),
    pod_claim_name=Key("podClaimName", left_out=""),
)


# The record of a claim.

S = TypeVar("S", bound=RecordedStep)


_WAS_LOST = "gpuWasLost"  # beside the keys of the allocation


class ClaimState(enum.StrEnum):
    """How far a claim has got. Any other value was written by a newer agent and is treated as PREPARED."""

    PREPARING = "preparing"  # the intent is recorded, effects are under way
    PREPARED = "prepared"  # all effects are done; the kubelet may have been answered
    UNPREPARING = "unpreparing"  # effects are being undone
    RECOVERED = "recovered"  # read back from the claim's CDI file after the ledger was lost


UNFINISHED = (ClaimState.PREPARING, ClaimState.UNPREPARING)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
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
        return {**self.allocation, _PODS: list(dict.fromkeys((*self.pods, *pods)))}

    def steps_of(self, kind: type[S]) -> tuple[S, ...]:
        """Return the recorded steps of a type."""
        return tuple(step for step in self.steps if isinstance(step, kind))

    def device_names(self) -> frozenset[str]:
        """Return the names of all devices of the claim, including those that it has with admin access."""
        return frozenset(device["device"] for device in self.allocation.get(_DEVICES) or ())

    def owned(self) -> tuple[tuple[str, str], ...]:
        """Return the devices that the claim owns, each with its share id ("" for a device that is not a share)."""
        devices = self.allocation.get(_DEVICES) or ()
        return tuple((one["device"], one.get("shareID") or "") for one in devices if not one.get("adminAccess"))

    def owned_names(self) -> tuple[str, ...]:
        """Return the names of the devices that the claim owns."""
        return tuple(device for device, _ in self.owned())

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


# Claim files: the ledger's view of the CDI files of prepared claims, which outlive the ledger.


class ClaimFiles(Protocol):
    """The CDI files of this driver's claims."""

    def recover(self) -> Iterable[ClaimRecord]:
        """Return a record for each claim that has a file; called when the ledger is lost and has to be rebuilt.

        Raises: PrepareError, if the files can't be read now.
        """

    def has(self, uid: str) -> bool:
        """Return whether a claim has a file."""


class NoClaimFiles:
    """No claim has a file: for a ledger that is only inspected."""

    def recover(self) -> Iterable[ClaimRecord]:
        """Return nothing."""
        return ()

    def has(self, _uid: str) -> bool:
        """Return that the claim has none."""
        return False
