"""GPU passthrough: takes a GPU from its driver for a virtual machine, and gives it back to the driver that it had.

In: steps of plans, and their records in the ledger. Out: GPUs bound to a VFIO driver, and their device nodes. The
ledger records every function's former driver before the first write, and each write before it begins; undoing needs
nothing else, and starts from what sysfs shows. Everything about one GPU happens under its lock, in calls that hold all
the devices of the GPU already (`gpu_holds`). A reboot undoes all writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dra_driver.claims.steps.passthrough import PassthroughStep
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.passthrough.driver_binding import DriverBinding
from dra_driver.hardware.passthrough.drivers import is_vfio, needed_driver
from dra_driver.hardware.passthrough.functions import read_function
from dra_driver.hardware.passthrough.group import read_passthrough_group
from dra_driver.hardware.passthrough.identity import read_identity
from dra_driver.hardware.passthrough.nodes import function_node
from dra_driver.hardware.passthrough.readiness import require_passable, require_safe_iommu
from dra_driver.hardware.port import Hardware, Resettable
from dra_driver.model.edits import Edits
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.passthrough.gpu_users import GpuUsers
from dra_driver.plugin.effects.passthrough.services import PassthroughServices
from dra_driver.plugin.ledger.recorded_steps import GpuReference, MovedFunction, RecordedPassthrough
from dra_driver.plugin.locks import NodeLocks, gpu_lock
from dra_driver.plugin.steps.performer import StepPerformer
from dra_driver.plugin.steps.step_run import StepRun, UndoRun
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_CALL_SECONDS = 10.0  # how long a call of the vendor's library may take
_LEAST_SECONDS = 1.0  # how long one may take at the end of a call


class GpuPassthrough(StepPerformer[PassthroughStep, RecordedPassthrough]):
    """Hands GPUs of one node to virtual machines, and takes them back."""

    kind = PassthroughStep.kind

    def __init__(
        self,
        hardware: Hardware,
        services: PassthroughServices,
        locks: NodeLocks,
        boot_id: str,
    ) -> None:
        self._hardware, self._access, self._locks, self._boot_id = hardware, services.access, locks, boot_id
        self._library, self._returning = services.library, services.returning
        self._users = GpuUsers(hardware, services.access)

    def intent(self, step: PassthroughStep) -> RecordedPassthrough:
        """Return the record of a GPU before its functions have been read."""
        return RecordedPassthrough(step.device, GpuReference.of(step.gpu))

    def inspect(self, step: PassthroughStep, deadline: Deadline) -> RecordedPassthrough:
        """Return the intent with the driver that each function has now; refuse a GPU that can't be handed over.

        Raises: HardwareError.
        """
        self._returning.await_checked(step.gpu.pci_address, deadline)
        roots, address = self._access.roots, step.gpu.pci_address
        require_safe_iommu(roots)
        group = read_passthrough_group(roots, address)
        wanted = step.gpu.passthrough.driver if step.gpu.passthrough else ""
        driver = needed_driver(roots, address, wanted)
        require_passable(roots, address)
        functions = tuple(MovedFunction(one.address, one.driver) for one in group.functions)
        seen = replace(self.intent(step), functions=functions, driver=driver, group=group.number, boot_id=self._boot_id)
        return replace(seen, pci_identity=read_identity(roots, address))

    def perform(self, step: PassthroughStep, recorded: RecordedPassthrough, run: StepRun) -> RecordedPassthrough:
        """Bind the GPU, and the other functions of its IOMMU group, to the VFIO driver. Idempotent.

        Raises: HardwareError, PrepareError("prepare.locked").
        """
        with self._hold(step.gpu.pci_address, run.deadline):
            if recorded.boot_id != self._boot_id or not recorded.functions:
                recorded = self.inspect(step, run.deadline)
                run.record(recorded)
            if not self._is_passed(recorded):
                recorded = self._take(step.gpu, recorded, run)
                log.info("GPU bound for a virtual machine", extra=fields(device=step.device, status=recorded.driver))
            self._find_nodes(step, recorded, run)
        return recorded

    def find(self, step: PassthroughStep, recorded: RecordedPassthrough, run: StepRun) -> None:
        """Find the device nodes for the claim's file. Raises: HardwareError("hardware.node-missing")."""
        self._find_nodes(step, recorded, run)

    def undo(self, recorded: RecordedPassthrough, undoing: UndoRun) -> None:
        """Reset the GPU, and give each function back to the driver that it had. Idempotent.

        Every function is given back even if another can't be. Raises: HardwareError, PrepareError("prepare.locked").
        """
        if recorded.boot_id != self._boot_id or not recorded.functions:
            return
        address = recorded.functions[0].address
        with self._hold(address, undoing.deadline):
            if read_function(self._access.roots, address) is None:
                log.warning("GPU gone while a virtual machine had it", extra=fields(device=recorded.device))
                return
            self._give_back(recorded, undoing.deadline)
        log.info("GPU given back to its driver", extra=fields(device=recorded.device, claim_uid=undoing.uid))

    # The callers of the methods below hold the GPU's lock.

    def _is_passed(self, recorded: RecordedPassthrough) -> bool:
        found = (read_function(self._access.roots, one.address) for one in recorded.functions)
        return all(one is not None and is_vfio(one.driver) for one in found)

    def _take(self, gpu: GpuFacts, recorded: RecordedPassthrough, run: StepRun) -> RecordedPassthrough:
        listed = self._users.listed(gpu)
        recorded = self._end_persistence(gpu, recorded, run)
        state = recorded

        def before(address: str, write: str) -> None:
            nonlocal state
            state = state.with_begun(address, write)
            run.record(state)

        with self._library.released(run.deadline):
            moved = [one.address for one in recorded.functions[1:] if one.former and not is_vfio(one.former)]
            self._users.require_unused(gpu, listed, moved)
            binding = DriverBinding(self._access, before=before, remaining=run.deadline.remaining)
            for function in recorded.functions:
                if not is_vfio(function.former):  # a function that an administrator bound at boot stays as it is
                    binding.bind(function.address, recorded.driver)
        return state

    def _end_persistence(self, gpu: GpuFacts, recorded: RecordedPassthrough, run: StepRun) -> RecordedPassthrough:
        """Switch off persistence mode, which keeps the GPU open; this is recorded first, so that it is restored."""
        if not isinstance(self._hardware, Resettable) or is_vfio(recorded.functions[0].former):
            return recorded
        seconds = min(_CALL_SECONDS, run.deadline.remaining())
        if self._hardware.persistence(gpu, seconds):
            recorded = replace(recorded, persistence=True)
            run.record(recorded)
            self._hardware.set_persistence(gpu, False, seconds)
        return recorded

    def _find_nodes(self, step: PassthroughStep, recorded: RecordedPassthrough, run: StepRun) -> None:
        roots, address = self._access.roots, recorded.gpu.pci_address
        node = function_node(roots, address, recorded.group, prefers_iommufd=step.prefers_iommufd)
        run.passed[step.device] = Edits(device_nodes=(node,))

    def _give_back(self, recorded: RecordedPassthrough, deadline: Deadline) -> None:
        address = recorded.functions[0].address
        binding = DriverBinding(self._access, before=lambda *_: None, remaining=deadline.remaining)
        now = read_function(self._access.roots, address)
        is_passed = now is not None and is_vfio(now.driver)
        if is_passed:
            self._users.require_left(address, recorded.group)
            # A GPU that an administrator had bound to VFIO goes back to VFIO, so no GPU driver will ever report it.
            if not is_vfio(recorded.functions[0].former):
                self._returning.begin(recorded.gpu, recorded.pci_identity, needs_persistence=recorded.persistence)
            binding.reset(address)
        fault: DriverError | None = None
        for function in reversed(recorded.functions):
            try:
                self._move_back(binding, function)
            except DriverError as error:
                log.warning("function not given back", extra=fields(device=function.address, err=str(error)))
                fault = fault or error
        if fault is not None:
            raise fault
        if recorded.persistence and not is_passed:  # otherwise it is switched on once the GPU has been checked
            self._restore_persistence(recorded, deadline)

    def _restore_persistence(self, recorded: RecordedPassthrough, deadline: Deadline) -> None:
        """Switch on the persistence mode of a GPU that no virtual machine got. A failure is only logged."""
        if not isinstance(self._hardware, Resettable):
            return
        try:
            self._hardware.set_persistence(
                recorded.gpu.facts(), True, max(_LEAST_SECONDS, min(_CALL_SECONDS, deadline.remaining()))
            )
        except DriverError as error:
            log.warning("persistence mode not restored", extra=fields(device=recorded.device, err=str(error)))

    def _move_back(self, binding: DriverBinding, function: MovedFunction) -> None:
        now = read_function(self._access.roots, function.address)
        if now is None or (is_vfio(function.former) and now.driver == function.former):
            return  # it is gone, or was never moved: then an administrator's driver_override stays as well
        binding.bind(function.address, function.former)

    @contextmanager
    def _hold(self, address: str, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([gpu_lock(address)], deadline):
            yield
