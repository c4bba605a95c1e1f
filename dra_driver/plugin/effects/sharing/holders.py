"""Holders: effects on devices that several claims may hold. The first claim applies an effect, the last one undoes it.

In: steps of plans, and what the ledger knows of the device. Out: effects, and what to record. Everything that concerns
one device happens under that device's lock, which also holds between two agents, so that a claim that arrives and one
that leaves see each other. A second claim must agree with the first on how the device is shared. An effect of another
boot is gone: it is never undone, but applied again by the next claim that is prepared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dra_driver.claims.plan import Step
from dra_driver.claims.sharing_plan import SharingStep, sharing_step_of_record
from dra_driver.hardware.facts import PartitionFacts
from dra_driver.model.edits import Edits, merge
from dra_driver.model.errors import ClaimError, DriverError, Retry
from dra_driver.model.sharing import ClientLimits, MpsSettings, SharedDevice, SharingSettings, TimeSlicingSettings
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsChannel
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.sharing.clients import client_edits
from dra_driver.plugin.effects.sharing.effects import SharingEffects
from dra_driver.plugin.ledger.device_effects import DeviceEffect, Holder, Progress, effect_of_record
from dra_driver.plugin.ledger.ledger import Ledger, as_far_as_there_is_room
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.separation import require_one_namespace
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

TIDY_SECONDS = 4.0  # time limit for undoing an effect that no claim holds any more
EFFECT_ENV = "DRA_DRIVER_SHARING"
_CHANNEL, _EFFECT = "channel", "effect"


class SharingHolders:
    """The sharing of one node's devices among claims."""

    def __init__(self, effects: SharingEffects, ledger: Ledger, locks: NodeLocks, boot_id: str) -> None:
        self._effects, self._ledger, self._locks, self._boot_id = effects, ledger, locks, boot_id

    def require(self, step: SharingStep, deadline: Deadline) -> None:
        """Check that a step can be made, before anything is. Raises: SharingError."""
        self._effects.require(step.settings, deadline.remaining())

    def make(
        self, uid: str, step: SharingStep, recorded: Wire, partition: PartitionFacts | None, deadline: Deadline
    ) -> Wire:
        """Make a claim a holder of the device with the effect in force, and return what to record of the step.

        Idempotent.

        Raises: ClaimError("claim.sharing-differs"), SharingError, HardwareError, PrepareError("prepare.locked").
        """
        device = replace(step.device, mig_uuid=partition.uuid) if partition else step.device
        rows = self._ledger.effects
        with self._hold(device.name, deadline):
            effect, holders = rows.get(device.name), rows.holders(device.name)
            others = [holder for holder in holders if holder.uid != uid]
            is_holder = len(others) < len(holders)
            if effect is not None and others and not is_holder:
                self._agree(effect, step.settings, others, uid)
            if effect is not None and not others and (not is_holder or effect.device.uuid != device.uuid):
                self._undo(effect, deadline)  # left by a crash, or of a partition that was re-created since
                effect = None
            if effect is None or effect.boot_id != self._boot_id:
                settings = step.settings if effect is None else effect.settings
                effect = self._begin(uid, device, settings, deadline)
            elif not is_holder:
                rows.join(device.name, uid)
            channel = self._put_in_force(effect, deadline)
        made = {**recorded, **step.record(), "device": effect.record()["device"], _EFFECT: effect.record()}
        return {**made, _CHANNEL: {"pipeDir": channel.pipe_dir, "shmDir": channel.shm_dir}} if channel else made

    def unmake(self, uid: str, recorded: Wire, deadline: Deadline) -> None:
        """Release a claim's hold on a device; releasing the last one undoes the effect. Idempotent.

        Raises: DriverError.
        """
        name = recorded["key"]
        rows = self._ledger.effects
        with self._hold(name, deadline):
            effect = rows.get(name)
            if effect is None:
                return
            if any(holder.uid != uid for holder in rows.holders(name)):
                if not self._ledger.is_read_only:
                    with as_far_as_there_is_room("let go of a device"):
                        rows.let_go(name, uid)
                self._effects.leave(effect.device, effect.settings, deadline.remaining())
                return
            self._undo(effect, deadline)

    def tidy(self) -> int:
        """Undo what no claim holds any more, and end MPS daemons that belong to no effect.

        Returns the number of effects and daemons removed.
        """
        count = 0
        for name in self._ledger.effects.names():
            try:
                count += self._tidy(name)
            except DriverError as error:
                log.warning("sharing not undone", extra=fields(device=name, code=error.code, err=str(error)))
        if self._effects.supervisor is not None:
            try:
                strays = self._effects.supervisor.stop_unnamed(self._ledger.effects.uuids, deadline_s=TIDY_SECONDS)
            except DriverError as error:
                log.info(
                    "cannot check for MPS daemons that no claim uses", extra=fields(code=error.code, err=str(error))
                )
            else:
                count += len(strays)
        return count

    # The methods below run under the device's lock

    def _begin(self, uid: str, device: SharedDevice, settings: SharingSettings, deadline: Deadline) -> DeviceEffect:
        found = self._effects.look(device, settings, deadline.remaining())
        effect = DeviceEffect(device, settings, found, self._boot_id)
        self._ledger.effects.begin(effect, uid)
        return effect

    def _put_in_force(self, effect: DeviceEffect, deadline: Deadline) -> MpsChannel | None:
        left = deadline.remaining()
        if effect.progress == Progress.APPLIED:
            return self._effects.join(effect.device, effect.settings, effect.found, left)
        channel = self._effects.apply(effect.device, effect.settings, effect.found, left)
        self._ledger.effects.applied(effect.device.name)
        return channel

    def _undo(self, effect: DeviceEffect, deadline: Deadline) -> None:
        if effect.boot_id == self._boot_id:
            self._effects.undo(effect.device, effect.settings, effect.found, deadline.remaining())
        if not self._ledger.is_read_only:
            with as_far_as_there_is_room("forget what was done to a device"):
                self._ledger.effects.end(effect.device.name)

    def _agree(self, effect: DeviceEffect, settings: SharingSettings, others: list[Holder], uid: str) -> None:
        """Raise ClaimError unless an arriving claim may share the device with those that hold it."""
        theirs = ", ".join(holder.full_name for holder in others)
        if effect.settings != settings:
            raise ClaimError(
                "sharing-differs",
                f"{effect.device.name} is shared as {_words(effect.settings)} by claim {theirs}, "
                f"but this claim asks for {_words(settings)}",
                hint="claims on one device must agree; it can be shared differently once they have ended",
                retry=Retry.LATER,
            )
        if not isinstance(settings, MpsSettings) or settings.across_namespaces:
            return
        record = self._ledger.get(uid)
        if record is not None:
            require_one_namespace(effect.device.name, record.namespace, record.name, others)

    def _tidy(self, name: str) -> bool:
        with self._hold(name, Deadline.after(0)):
            effect = self._ledger.effects.get(name)
            if effect is None or self._ledger.effects.holders(name):
                return False
            self._undo(effect, Deadline.after(TIDY_SECONDS))
        log.warning("sharing that no claim holds was undone", extra=fields(device=name))
        return True

    @contextmanager
    def _hold(self, device: str, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([f"sharing/{device}"], deadline):
            yield


def with_sharing(edits: Edits, step: SharingStep, recorded: Wire, name: str) -> Edits:
    """Return one device's edits with what its sharing adds.

    They include a record of the sharing that survives the ledger's loss.
    """
    parts = [edits]
    channel = recorded.get(_CHANNEL)
    if channel is not None:
        limits = step.clients.get(name, ClientLimits())
        parts.append(client_edits(MpsChannel(channel["pipeDir"], channel["shmDir"]), limits))
    if recorded.get(_EFFECT) and step.settings != TimeSlicingSettings():
        text = json.dumps(recorded[_EFFECT], separators=(",", ":"), sort_keys=True)
        parts.append(Edits(env=(f"{EFFECT_ENV}={text}",)))
    return merge(parts)


def in_force(steps: Sequence[Step], recorded: Sequence[Wire]) -> tuple[Step, ...]:
    """Return the steps of a plan with the sharing that the claim was prepared with.

    The configuration may have changed since.
    """
    known = [r for r in recorded if r.get("kind") == SharingStep.kind and _EFFECT in r and r.get("inFile")]
    made = {record["key"]: sharing_step_of_record(record) for record in known}
    *others, last = [made.pop(s.key, s) if isinstance(s, SharingStep) else s for s in steps]
    return (*others, *made.values(), last)


def step_of_env(value: str) -> Wire:
    """Return the recorded step that `with_sharing` wrote. Raises: KeyError, TypeError, ValueError."""
    effect = effect_of_record(json.loads(value))
    return {**SharingStep(effect.device, effect.settings).record(), _EFFECT: effect.record()}


def _words(settings: SharingSettings) -> str:
    if not isinstance(settings, MpsSettings):
        return f"TimeSlicing with interval {settings.interval}"
    parts = [
        f"{settings.active_thread_percentage} % of the threads"
        if settings.active_thread_percentage is not None
        else "",
        f"{settings.pinned_memory_limit >> 20} MiB pinned" if settings.pinned_memory_limit is not None else "",
        "several users" if settings.multi_user else "",
    ]
    return f"MPS ({', '.join(filter(None, parts)) or 'no limits'})"
