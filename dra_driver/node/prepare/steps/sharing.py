"""Sharing holders: the claims that hold a shared device. The first one applies the effect, and the last one undoes it.

In: steps of plans, and what the ledger knows about the device. Out: effects, and records. Everything that concerns one
device happens under the device's lock, which also holds between two agents, so that a claim that arrives and one that
leaves know of each other. A second claim must agree with the first on how the device is shared. An effect of another
boot is gone: it is never undone, but applied again by the next claim that is prepared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from dra_driver.base.errors import ClaimError, DriverError, PrepareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import ClientLimits, MpsSettings, SharedDevice, SharingSettings
from dra_driver.hardware.facts import Edits, Mount
from dra_driver.node.claims.plan import PreparePlan, SharingStep
from dra_driver.node.ledger.access import tolerate_full_disk
from dra_driver.node.ledger.device_effects import DeviceEffects, EffectHolder
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks
from dra_driver.node.ledger.recorded_steps import DeviceEffect, Progress, RecordedSharing
from dra_driver.node.mps.client import MpsChannel
from dra_driver.node.prepare.steps.effects import StepPerformer, StepRun, UndoRun
from dra_driver.node.prepare.steps.sharing_modes import SharingEffects

# The container edits of an MPS client: its daemon's channel and its limits come in, edits go out.

PIPE_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for the daemon by default
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where client and server share files
_BIND = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_MIB = 1 << 20


def client_edits(channel: MpsChannel, limits: ClientLimits) -> Edits:
    """Return the container edits of one client. A client sees a single device, so the device's ordinal is 0."""
    env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE_FOLDER}"]
    if limits.active_thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limits.active_thread_percentage}")
    if limits.pinned_memory_limit is not None:
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limits.pinned_memory_limit // _MIB}M")
    mounts = (Mount(channel.pipe_dir, PIPE_FOLDER, _BIND), Mount(channel.shm_dir, SHARED_MEMORY, _BIND))
    return Edits(mounts=mounts, env=tuple(env))


# Separation: the last check that keeps the MPS clients of different namespaces apart.


def require_separation(plan: PreparePlan, effects: DeviceEffects) -> None:
    """Refuse a plan that would put two namespaces on one MPS daemon. Raises: ClaimError, LedgerError."""
    claim = plan.claim
    for step in plan.steps:
        if not isinstance(step, SharingStep) or not isinstance(step.settings, MpsSettings):
            continue
        if step.tenant and step.tenant != claim.namespace:
            raise ClaimError(
                "sharing-tenant",
                f"{step.device.name} is shared by MPS only in namespace {step.tenant}, but claim {claim.namespace}/"
                f"{claim.name} is in namespace {claim.namespace}",
                hint=_what_to_delete(claim.namespace, claim.name),
                retry=Retry.LATER,
            )
        in_force = None if step.settings.across_namespaces else effects.get(step.device.name)
        if in_force is not None and isinstance(in_force.settings, MpsSettings):
            others = [holder for holder in effects.holders(step.device.name) if holder.uid != claim.uid]
            require_one_namespace(step.device.name, claim.namespace, claim.name, others)


def require_one_namespace(device: str, namespace: str, name: str, others: Iterable[EffectHolder]) -> None:
    """Refuse a claim if claims of another namespace hold the device. Raises: ClaimError."""
    foreign = [holder for holder in others if holder.name and holder.namespace != namespace]
    if not foreign:
        return
    theirs, listed = ", ".join(sorted({h.namespace for h in foreign})), ", ".join(h.full_name for h in foreign)
    raise ClaimError(
        "sharing-namespaces",
        f"the MPS daemon of {device} serves namespace {theirs} (claim {listed}), but this claim is in {namespace}",
        hint=f"clients of one MPS daemon can reach each other; {_what_to_delete(namespace, name)}; "
        "mps.tenants=namespace offers each device to a single namespace from the start, "
        "acrossNamespaces allows sharing between namespaces",
        retry=Retry.LATER,
    )


def _what_to_delete(namespace: str, name: str) -> str:
    """Return what to delete so that a pod gets another device: an allocation lasts as long as a pod uses it."""
    return (
        f"delete the pods that use claim {namespace}/{name}, and the claim itself if no pod template made it: "
        "their replacements are scheduled again"
    )


log = logging.getLogger(__name__)

TIDY_SECONDS = 4.0  # how long undoing an effect that no claim holds any more may take


class SharingHolders(StepPerformer[SharingStep, RecordedSharing]):
    """The sharing of one node's devices among claims."""

    kind = SharingStep.kind

    def __init__(self, effects: SharingEffects, ledger: Ledger, locks: NodeLocks, boot_id: str) -> None:
        self._effects, self._ledger, self._locks, self._boot_id = effects, ledger, locks, boot_id

    def intent(self, step: SharingStep) -> RecordedSharing:
        """Return the record of a device that is not shared yet."""
        return RecordedSharing(step.device, step.settings, step.in_file, step.clients, step.made)

    def inspect(self, step: SharingStep, deadline: Deadline) -> RecordedSharing:
        """Return the intent, if the program that the sharing needs is running. Raises: SharingError."""
        self._effects.require(step.settings, deadline.remaining())
        return self.intent(step)

    def check(self, step: SharingStep, deadline: Deadline) -> None:
        """Check that the device, unless another step makes it, can be shared as the step asks for it.

        Raises: ClaimError("claim.sharing-differs"), SharingError, HardwareError.
        """
        if step.made:
            return
        name, rows = step.device.name, self._ledger.effects
        effect, holders = rows.get(name), rows.holders(name)
        if effect is None:
            self._effects.inspect(step.device, step.settings, deadline.remaining())
        elif holders:
            self._check_agreement(effect, step.settings, holders, "")

    def in_force(self, step: SharingStep, recorded: RecordedSharing) -> SharingStep:
        """Return the step with the sharing with which the claim was prepared."""
        return self.left_in_force(recorded) or step

    def left_in_force(self, recorded: RecordedSharing) -> SharingStep | None:
        """Return the step with which a claim was prepared; None if it was not carried out yet."""
        if recorded.effect is None or not recorded.in_file:
            return None
        return SharingStep(recorded.device, recorded.settings, recorded.in_file, recorded.clients, recorded.made)

    def perform(self, step: SharingStep, recorded: RecordedSharing, run: StepRun) -> RecordedSharing:
        """Make the claim a holder of the device, and put the effect in force. Idempotent.

        Raises: ClaimError("claim.sharing-differs"), SharingError, HardwareError, PrepareError("prepare.locked").
        """
        device = step.device
        if step.made:
            device = replace(device, mig_uuid=run.partitions[step.made].facts.uuid)
        with self._hold(device.name, run.deadline):
            effect = self._become_holder(run.uid, device, step.settings, run.deadline)
            channel = self._put_in_force(effect, run.deadline)
        made = replace(
            recorded,
            device=effect.device,
            settings=step.settings,
            in_file=step.in_file,
            clients=step.clients,
            made=step.made,
            effect=effect,
            channel=channel or recorded.channel,
        )
        self.find(step, made, run)
        return recorded if made == recorded else made

    def find(self, step: SharingStep, recorded: RecordedSharing, run: StepRun) -> None:
        """Pass the sharing, as recorded, on to the step that writes the CDI file."""
        run.shared.append((step, recorded))
        if recorded.channel is not None:
            for name in step.in_file:
                run.edits.append((name, client_edits(recorded.channel, step.clients.get(name, ClientLimits()))))

    def undo(self, recorded: RecordedSharing, undoing: UndoRun) -> None:
        """Remove the claim from the holders of the device; if it was the last one, undo the effect. Idempotent.

        Raises: DriverError.
        """
        name, rows, deadline = recorded.key, self._ledger.effects, undoing.deadline
        with self._hold(name, deadline):
            effect = rows.get(name)
            if effect is None:
                return
            if any(holder.uid != undoing.uid for holder in rows.holders(name)):
                if not self._ledger.is_read_only:
                    with tolerate_full_disk("remove a holder of a device"):
                        rows.remove_holder(name, undoing.uid)
                self._effects.leave(effect.device, effect.settings, deadline.remaining())
                return
            self._undo(effect, deadline)

    def tidy(self) -> int:
        """Undo effects that no claim holds any more, and end MPS daemons that belong to no effect.

        Return how many effects were undone and daemons ended.
        """
        count = 0
        for name in self._ledger.effects.names():
            try:
                count += self._tidy(name)
            except DriverError as error:
                log.warning("sharing not undone", extra=fields(device=name, code=error.code, err=str(error)))
        if self._effects.supervisor is not None:
            try:
                strays = self._effects.supervisor.stop_unused(self._unused, deadline_s=TIDY_SECONDS)
            except DriverError as error:
                log.info(
                    "cannot check for MPS daemons that no claim uses", extra=fields(code=error.code, err=str(error))
                )
            else:
                count += len(strays)
        return count

    # The callers of the methods below hold the device's lock.

    def _become_holder(
        self, uid: str, device: SharedDevice, settings: SharingSettings, deadline: Deadline
    ) -> DeviceEffect:
        """Record the claim as a holder of the device, and return the device's effect. Raises: as `perform`."""
        rows = self._ledger.effects
        effect, holders = rows.get(device.name), rows.holders(device.name)
        others = [holder for holder in holders if holder.uid != uid]
        is_holder = len(others) < len(holders)
        if effect is not None and others and not is_holder:
            self._check_agreement(effect, settings, others, uid)
        if effect is not None and not others and (not is_holder or effect.device.uuid != device.uuid):
            self._undo(effect, deadline)  # a crash left it, or the partition was destroyed and made again since
            effect = None
        if effect is None or effect.boot_id != self._boot_id:
            return self._begin(uid, device, settings if effect is None else effect.settings, deadline)
        if not is_holder:
            rows.add_holder(device.name, uid)
        return effect

    def _begin(self, uid: str, device: SharedDevice, settings: SharingSettings, deadline: Deadline) -> DeviceEffect:
        found = self._effects.inspect(device, settings, deadline.remaining())
        effect = DeviceEffect(device, settings, found, self._boot_id)
        self._ledger.effects.begin(effect, uid)
        return effect

    def _put_in_force(self, effect: DeviceEffect, deadline: Deadline) -> MpsChannel | None:
        left = deadline.remaining()
        if effect.progress == Progress.APPLIED:
            return self._effects.join(effect.device, effect.settings, effect.found, left)
        channel = self._effects.apply(effect.device, effect.settings, effect.found, left)
        self._ledger.effects.set_applied(effect.device.name)
        return channel

    def _undo(self, effect: DeviceEffect, deadline: Deadline) -> None:
        if effect.boot_id == self._boot_id:
            self._effects.undo(effect.device, effect.settings, effect.found, deadline.remaining())
        if not self._ledger.is_read_only:
            with tolerate_full_disk("remove the record of an effect"):
                self._ledger.effects.remove(effect.device.name)

    def _check_agreement(
        self, effect: DeviceEffect, settings: SharingSettings, others: Sequence[EffectHolder], uid: str
    ) -> None:
        """Check that the claim `uid` may share the device with the `others` that hold it. Raises: ClaimError."""
        named = ", ".join(holder.full_name for holder in others)
        if effect.settings != settings:
            raise ClaimError(
                "sharing-differs",
                f"{effect.device.name} is shared as {_description(effect.settings)} by claim {named}, "
                f"but this claim asks for {_description(settings)}",
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
    def _unused(self, device: SharedDevice) -> Iterator[bool]:
        """Hold a device, and yield whether it has no effect; a device that a call holds is not unused."""
        with ExitStack() as held:
            try:
                held.enter_context(self._hold(device.name, Deadline.after(0)))
            except PrepareError:
                yield False
            else:
                yield device.uuid not in self._ledger.effects.uuids()

    @contextmanager
    def _hold(self, device: str, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([f"sharing/{device}"], deadline):
            yield


def _description(settings: SharingSettings) -> str:
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
