"""Step records: recorded steps as the JSON objects in a claim's row, and back, byte for byte.

A step that was read and not changed is written as the object from which it was read, including whatever a newer agent
put into it. A step that can't be read is kept as an `UnknownStep`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from dra_driver.hardware.facts import MigProfile
from dra_driver.hardware.passthrough.identity import UNKNOWN, PciIdentity
from dra_driver.model.records import Key, RecordForm, json_text
from dra_driver.model.sharing import CLIENT_LIMITS, SHARED_DEVICE, record_of_settings, settings_of_record
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsChannel
from dra_driver.plugin.ledger.effect_records import EFFECT
from dra_driver.plugin.ledger.recorded_steps import (
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

_KIND, _KEY = "kind", "key"
_GPU = RecordForm(GpuReference, pci_address=Key("pci"))
_PROFILE = RecordForm(MigProfile, starts=Key("starts", write=lambda _: [], read=lambda _: ()))
# The intents and commits of all claims have the same few GPUs and profiles. No caller changes the returned objects.
_gpu_record = lru_cache(maxsize=64)(_GPU.write)
_profile_record = lru_cache(maxsize=64)(_PROFILE.write)
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
        gpu=Key("gpu", lambda gpu: gpu and _gpu_record(gpu), lambda gpu: gpu and _GPU.read(gpu)),
        profile=Key("profile", _profile_record, _PROFILE.read, left_out=None),
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
_WITHOUT_KEY = RecordedFile.kind  # the records of this one kind have no "key": their "file" is the key


def text_of_step(step: RecordedStep) -> str:
    """Return a step as JSON, which the step keeps."""
    known = step.as_recorded
    if isinstance(known, str):
        return known
    if isinstance(step, RecordedFile) and known is None and not step.rest:
        # Every new claim has one. An object of these two keys takes several times as long as the text of one of them.
        text = f'{{"file":{json_text(step.file)},"kind":"{step.kind}"}}'
    else:
        text = json_text(_record_of_step(step) if known is None else known)
    object.__setattr__(step, "as_recorded", text)
    return text


def text_of_steps(steps: Iterable[RecordedStep]) -> str:
    """Return the steps of a claim as they are in its row."""
    return f"[{','.join([text_of_step(step) for step in steps])}]"


def _record_of_step(step: RecordedStep) -> Wire:
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
