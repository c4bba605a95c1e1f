"""MPS device: sets the compute mode of a device under MPS and starts its daemon, from the first user to the last.

In: a device, its settings, and the compute mode that was found before anything was changed. Out: the channel of its
daemon. While the daemon runs, the compute mode keeps all other processes off the device. MIG devices have no compute
mode on most drivers, and need none, because nothing else is given the device. The supervisor runs the daemon.
Source: NVIDIA, "Multi-Process Service" (EXCLUSIVE_PROCESS is recommended, not needed).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from dra_driver.base.errors import HardwareError, Retry, SharingError
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import (
    ComputeMode,
    Interval,
    MpsSettings,
    SharedDevice,
    SharingSettings,
    TimeSlicingSettings,
    Wire,
)
from dra_driver.hardware.port import ComputeUnitChoosing, Shareable
from dra_driver.node.claims.plan import ComputeUnitsStep
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks
from dra_driver.node.ledger.recorded_steps import RecordedComputeUnits
from dra_driver.node.mps.client import MpsChannel, MpsSupervisor
from dra_driver.node.prepare.steps.effects import StepPerformer, StepRun, UndoRun

# Compute modes: reads, checks and sets the compute modes of shared devices.

log = logging.getLogger(__name__)

_NONE = "hardware.compute-mode-unsupported"


class ComputeModes:
    """The compute modes of one node's devices."""

    def __init__(self, hardware: object) -> None:
        self._hardware = hardware

    def read(self, device: SharedDevice, deadline_s: float) -> ComputeMode | None:
        """Return the compute mode, or None if the device has none. Raises: HardwareError."""
        if not isinstance(self._hardware, Shareable):
            return None
        try:
            return self._hardware.compute_mode(device, deadline_s)
        except HardwareError as error:
            if error.code != _NONE:
                raise
            return None

    def require(
        self, device: SharedDevice, allowed: Collection[ComputeMode], what: str, deadline_s: float
    ) -> ComputeMode | None:
        """Return the compute mode, which must be one of `allowed`; `what` is the consequence of others, for the error.

        Raises: SharingError("sharing.compute-mode"), HardwareError.
        """
        mode = self.read(device, deadline_s)
        if mode is not None and mode not in allowed:
            raise SharingError(
                "compute-mode",
                f"{device} has compute mode {mode}: {what}",
                hint="an administrator set it; nvidia-smi -c DEFAULT restores the default",
                retry=Retry.LATER,
            )
        return mode

    def set(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode unless it is set already. It is no error if a MIG device refuses the change.

        Raises: HardwareError.
        """
        if not isinstance(self._hardware, Shareable) or self.read(device, deadline_s) is mode:
            return
        try:
            self._hardware.set_compute_mode(device, mode, deadline_s)
        except HardwareError as error:
            if error.code != _NONE or device.mig_uuid is None:
                raise
            log.info("MIG device keeps its compute mode", extra=fields(device=device.name, err=str(error)))
        else:
            log.info("compute mode set", extra=fields(device=device.name, status=mode))


READY_SECONDS = 10.0  # a daemon is usually ready within 1 s, but giving up early would delay the pod by a minute
TIDY_SECONDS = 2.0
_MODE = "computeMode"  # the ledger's key of the mode that was found
_GONE = "hardware.gpu-lost"


class MpsDevices:
    """MPS on one node's devices. If there is no supervisor, every start is refused."""

    def __init__(self, hardware: object, supervisor: MpsSupervisor | None) -> None:
        self._modes, self._supervisor = ComputeModes(hardware), supervisor

    def inspect(self, device: SharedDevice, deadline_s: float) -> Wire:
        """Return the compute mode, which undoing will need, and refuse what can't work. Nothing is changed.

        Raises: SharingError("sharing.mps-unavailable", "sharing.compute-mode"), HardwareError.
        """
        self._require_supervisor().running(deadline_s=deadline_s)
        allowed = {ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS}
        mode = self._modes.require(device, allowed, "an MPS server can't use it", deadline_s)
        return {_MODE: mode}

    def apply(self, device: SharedDevice, settings: MpsSettings, found: Wire, deadline_s: float) -> MpsChannel:
        """Start the daemon unless it runs, and set the compute mode so that no other process can use the device.

        Raises: SharingError, HardwareError.
        """
        end = time.monotonic() + deadline_s
        if found.get(_MODE) == ComputeMode.DEFAULT:
            self._modes.set(device, ComputeMode.EXCLUSIVE_PROCESS, end - time.monotonic())
        left_s = max(0.1, min(READY_SECONDS, end - time.monotonic()))
        return self._require_supervisor().start(device, settings, deadline_s=left_s)

    def leave(self, device: SharedDevice, deadline_s: float) -> None:
        """Remove what a user left in the shared /dev/shm; if that fails, it is removed when the next user starts."""
        try:
            self._require_supervisor().tidy(device, deadline_s=min(TIDY_SECONDS, deadline_s))
        except SharingError as error:
            log.info(
                "leftover shared memory not removed", extra=fields(device=device.name, code=error.code, err=str(error))
            )

    def undo(self, device: SharedDevice, found: Wire, deadline_s: float) -> None:
        """End the daemon, then restore the device's compute mode. Raises: SharingError, HardwareError."""
        end = time.monotonic() + deadline_s
        self._require_supervisor().stop(device, deadline_s=deadline_s)
        if found.get(_MODE) != ComputeMode.DEFAULT:
            return
        try:
            self._modes.set(device, ComputeMode.DEFAULT, max(0.1, end - time.monotonic()))
        except HardwareError as error:
            if error.code != _GONE:
                raise
            log.warning("compute mode not restored", extra=fields(device=device.name, err=str(error)))

    def require(self, deadline_s: float) -> None:
        """Check that the supervisor answers. Raises: SharingError."""
        self._require_supervisor().running(deadline_s=deadline_s)

    def _require_supervisor(self) -> MpsSupervisor:
        if self._supervisor is None:
            raise SharingError(
                "mps-unavailable",
                "no MPS supervisor is configured on this node",
                hint="run `dra-driver mps` on the node, with the same --kubelet-plugins-directory-path as the agent",
                retry=Retry.LATER,
            )
        return self._supervisor


# Time slices of shared GPUs: set for the first user, and set back to the GPU driver's default after the last one.

_NOTHING_TO_RESTORE = ("hardware.gpu-lost", "hardware.time-slice-unsupported", "hardware.nvidia-smi-missing")


class TimeSlices:
    """The time slices of one node's GPUs."""

    def __init__(self, hardware: object) -> None:
        self._hardware, self._modes = hardware, ComputeModes(hardware)
        self._checked: set[str] = set()  # GPUs on which this process has checked the default

    def check(self, device: SharedDevice, deadline_s: float) -> None:
        """Refuse a GPU whose compute mode admits only one process. Raises: SharingError("sharing.compute-mode")."""
        self._modes.require(device, {ComputeMode.DEFAULT}, "processes can't take turns on it", deadline_s)

    def apply(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Set the time slice of a GPU that no other claim uses yet. Raises: HardwareError, SharingError."""
        if settings.interval is Interval.DEFAULT and self._is_default(device, deadline_s):
            return
        self._set(device, settings.interval, deadline_s)

    def undo(self, device: SharedDevice, settings: TimeSlicingSettings, deadline_s: float) -> None:
        """Restore the GPU driver's default, unless the GPU or the driver is gone.

        Raises: HardwareError.
        """
        if settings.interval is Interval.DEFAULT:
            return
        try:
            self._set(device, Interval.DEFAULT, deadline_s)
        except HardwareError as error:
            if error.code not in _NOTHING_TO_RESTORE:
                raise
            log.warning("time slice not restored", extra=fields(device=device.name, code=error.code, err=str(error)))

    def _is_default(self, device: SharedDevice, deadline_s: float) -> bool:
        """Return whether the GPU has the default interval; a GPU that can't report its interval has no other."""
        if not isinstance(self._hardware, Shareable) or device.gpu_uuid in self._checked:
            return True
        now = self._hardware.time_slice(device, deadline_s)
        self._checked.add(device.gpu_uuid)
        return now in {None, Interval.DEFAULT}

    def _set(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        if not isinstance(self._hardware, Shareable):
            raise SharingError(
                "not-shareable", f"time slices of {device} can't be set by this agent's hardware backend"
            )
        self._hardware.set_time_slice(device, interval, deadline_s)
        log.info("time slice set", extra=fields(device=device.name, status=interval))


# Sharing effects: inspects a device, applies the settings of any strategy to it, and undoes them after the last
# user.


class SharingEffects:
    """The sharing effects on one node's devices."""

    def __init__(self, hardware: object, supervisor: MpsSupervisor | None = None) -> None:
        self._slices, self._mps = TimeSlices(hardware), MpsDevices(hardware, supervisor)
        self.supervisor = supervisor

    def require(self, settings: SharingSettings, deadline_s: float) -> None:
        """Check that the program that these settings need is running. Raises: SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.require(deadline_s)

    def inspect(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> Wire:
        """Return the device's present settings, which undoing will need. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.inspect(device, deadline_s)
        self._slices.check(device, deadline_s)
        return {}

    def apply(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Apply the settings to the device. Idempotent. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        self._slices.apply(device, settings, deadline_s)
        return None

    def join(
        self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float
    ) -> MpsChannel | None:
        """Restore an effect that was applied earlier in this boot: an MPS daemon may have died, a time slice can't.

        Return the MPS channel, under MPS. Raises: HardwareError, SharingError.
        """
        if isinstance(settings, MpsSettings):
            return self._mps.apply(device, settings, found, deadline_s)
        return None

    def leave(self, device: SharedDevice, settings: SharingSettings, deadline_s: float) -> None:
        """Clean up after one of several users of a device. It never raises an error."""
        if isinstance(settings, MpsSettings):
            self._mps.leave(device, deadline_s)

    def undo(self, device: SharedDevice, settings: SharingSettings, found: Wire, deadline_s: float) -> None:
        """Restore the device to the state in which it was found. Idempotent. Raises: HardwareError, SharingError."""
        if isinstance(settings, MpsSettings):
            self._mps.undo(device, found, deadline_s)
        else:
            self._slices.undo(device, settings, deadline_s)


# Compute units: chooses the compute units of a GPU to which a claim's programs are limited.


class ComputeUnits(StepPerformer[ComputeUnitsStep, RecordedComputeUnits]):
    """The compute units of one node's GPUs."""

    kind = ComputeUnitsStep.kind

    def __init__(self, hardware: object, ledger: Ledger, locks: NodeLocks) -> None:
        self._hardware, self._ledger, self._locks = hardware, ledger, locks

    def intent(self, step: ComputeUnitsStep) -> RecordedComputeUnits:
        """Return the record of a step whose units have not been chosen yet."""
        return RecordedComputeUnits(step.device)

    def inspect(self, step: ComputeUnitsStep, _deadline: Deadline) -> RecordedComputeUnits:
        """Return the intent; refuse a GPU that can't do this. Raises: SharingError("compute-units-unsupported")."""
        self._chooser(step)
        return self.intent(step)

    def perform(self, step: ComputeUnitsStep, recorded: RecordedComputeUnits, run: StepRun) -> RecordedComputeUnits:
        """Choose the units unless they were chosen before. Idempotent.

        Raises: SharingError("sharing.compute-units-taken", LATER), LedgerError, PrepareError.
        """
        if not recorded.units:
            with self._locks.hold([f"compute-units/{step.device.name}"], run.deadline):
                recorded = replace(recorded, units=tuple(self._choose(run.uid, step)))
                run.record(recorded)
        self.find(step, recorded, run)
        return recorded

    def find(self, step: ComputeUnitsStep, recorded: RecordedComputeUnits, run: StepRun) -> None:
        """Pass the units on to the step that writes the CDI file."""
        if recorded.units:
            edits = self._chooser(step).compute_unit_edits(recorded.units)
            run.edits += [(name, edits) for name in step.in_file]

    def undo(self, recorded: RecordedComputeUnits, _undoing: UndoRun) -> None:
        """Do nothing: the units are free when the claim's row is removed."""

    def _choose(self, uid: str, step: ComputeUnitsStep) -> Sequence[int]:
        """Return the lowest units that no other claim has. The caller holds the GPU's lock. Raises: SharingError."""
        others = [one for one in self._ledger.with_step_on(RecordedComputeUnits, step.device.name) if one.uid != uid]
        taken = {
            unit
            for record in others
            for one in record.steps_of(RecordedComputeUnits)
            if one.key == step.key
            for unit in one.units
        }
        free = list(_free(step, taken))
        if len(free) < step.count:
            names = ", ".join(record.full_name for record in others)
            raise SharingError(
                "compute-units-taken",
                f"{step.device} has {step.total} compute units, of which {len(free)} are free beside claims {names}; "
                f"this claim asks for {step.count}",
                hint="ask for fewer, or delete this pod and its claim so that another GPU is chosen",
                retry=Retry.LATER,
            )
        return free[: step.count]

    def _chooser(self, step: ComputeUnitsStep) -> ComputeUnitChoosing:
        if not isinstance(self._hardware, ComputeUnitChoosing):
            raise SharingError(
                "compute-units-unsupported",
                f"compute units of {step.device} can't be chosen: its runtime has no such setting",
                hint="leave computeUnits out of the config",
            )
        return self._hardware


def _free(step: ComputeUnitsStep, taken: set[int]) -> Iterable[int]:
    """Yield the units that are free; only complete pairs if the GPU uses them in pairs."""
    size = 2 if step.in_pairs else 1
    for first in range(0, step.total - size + 1, size):
        group = range(first, first + size)
        if taken.isdisjoint(group):
            yield from group
