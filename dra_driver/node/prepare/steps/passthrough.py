"""GPU passthrough: takes a GPU from its driver for a virtual machine, and gives it back to the driver that it had.

In: steps of plans, and their records in the ledger. Out: GPUs bound to a VFIO driver, and their device nodes. The
ledger records every function's former driver before the first write, and each write before it begins; undoing needs
nothing else, and starts from what sysfs shows. Everything about one GPU happens under its lock, in calls that hold all
the devices of the GPU already (`GpuHolds`). A reboot undoes all writes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, HardwareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware import driver_binding
from dra_driver.hardware.driver_binding import BusAccess, ChildWriter, DriverBinding, read_attached_devices
from dra_driver.hardware.facts import Edits, GpuFacts
from dra_driver.hardware.pci import is_vfio
from dra_driver.hardware.port import Hardware, ProcessLister, Resettable, Roots
from dra_driver.hardware.vfio import (
    PciIdentity,
    every_node_name,
    function_node,
    needed_driver,
    read_function,
    read_identity,
    read_passthrough_group,
    require_passable,
    require_safe_iommu,
)
from dra_driver.node.claims.plan import PassthroughStep
from dra_driver.node.ledger.locks import NodeLocks, gpu_lock
from dra_driver.node.ledger.recorded_steps import GpuReference, MovedFunction, RecordedPassthrough
from dra_driver.node.neighbours.gone_claims import described
from dra_driver.node.prepare.steps.effects import StepPerformer, StepRun, UndoRun

# GPU users: the processes that use a GPU, which must not be taken from its driver or a virtual machine while they
# do.

MAX_NAMED = 8


class GpuUsers:
    """The users of one node's GPUs."""

    def __init__(self, hardware: Hardware, access: BusAccess) -> None:
        self._hardware, self._access = hardware, access

    def listed(self, gpu: GpuFacts) -> frozenset[int]:
        """Return the pids of the processes that the vendor's library lists on a GPU; none if it can't list them."""
        if not isinstance(self._hardware, ProcessLister):
            return frozenset()
        try:
            return frozenset(self._hardware.processes(gpu, None))
        except HardwareError:
            return frozenset()

    def require_unused(self, gpu: GpuFacts, listed: Collection[int] = (), companions: Iterable[str] = ()) -> None:
        """Refuse a GPU that a process uses or has open, and one whose companions are in use.

        `listed` are pids that the vendor's library has listed on the GPU. `companions` are the PCI addresses of
        functions that have to be handed over with the GPU. Raises: HardwareError("hardware.gpu-in-use").
        """
        roots = self._access.roots
        names = driver_binding.node_names(roots, gpu.pci_address, gpu.nodes)
        numbers = read_attached_devices(roots, gpu.pci_address).nodes
        found = {*listed, *driver_binding.processes_with(roots, names, gpu.pci_address, numbers)}
        if isinstance(self._hardware, driver_binding.ComputeLister):
            found |= self._hardware.computing_on(gpu.pci_address)
        if isinstance(self._hardware, Resettable):
            found.update(self._hardware.open_by(gpu))
        self._refuse(found, f"GPU {gpu.pci_address} can't leave its driver")
        for address in companions:
            attached = read_attached_devices(roots, address)
            text = f"{address}, which goes along with GPU {gpu.pci_address}, can't leave its driver"
            self._refuse(driver_binding.processes_with(roots, (), numbers=attached.nodes), text)
            if attached.in_use:
                raise _in_use(f"{text}: it has {', '.join(attached.in_use[:MAX_NAMED])}", "remove them")

    def require_left(self, address: str, group: int) -> None:
        """Refuse a GPU that a virtual machine still has. Raises: HardwareError("hardware.gpu-in-use")."""
        roots = self._access.roots
        found = driver_binding.processes_with(roots, every_node_name(roots, address, group))
        self._refuse(found, f"GPU {address} can't be taken back")

    def _refuse(self, pids: Collection[int], text: str) -> None:
        if not pids:
            return
        proc = Path(self._access.roots.proc)
        named = described(sorted(pids)[:MAX_NAMED], proc)
        more = f" and {len(pids) - MAX_NAMED} more" if len(pids) > MAX_NAMED else ""
        hint = "end them or make them release the GPU (docs/kubevirt.md lists the usual ones)"
        raise _in_use(f"{text}: it is open in {', '.join(named)}{more}", hint)


def _in_use(text: str, hint: str) -> HardwareError:
    return HardwareError("gpu-in-use", text, hint=hint, retry=Retry.LATER)


# The services, besides the kernel, that are needed to hand a GPU to a virtual machine.


class LibraryPause(Protocol):
    """Releases the vendor's library for a moment, because it has every GPU open."""

    def released(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context in which this process has no GPU open; calls about GPUs wait for its end.

        Raises: HardwareError("hardware.library-busy", LATER).
        """


class ReturningGpus(Protocol):
    """GPUs returned by virtual machines. They are withheld until they have been identified and tested."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Withhold a GPU from now on, and switch its persistence mode on again, if needed, once it is back.

        `identity` is that of the GPU's function before the virtual machine had it.
        """

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Wait until a GPU is no longer withheld.

        Raises: HardwareError("hardware.not-checked", LATER) if that takes longer, or if the check has failed.
        """


class NothingToRelease:
    """The pause of a library that has no GPU open."""

    def released(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context in which nothing happens."""
        del deadline
        return nullcontext()


class NoneReturning:
    """The returning GPUs of a node where none is withheld."""

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Do nothing."""

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class PassthroughServices:
    """The access to a node's PCI bus, the pause of its vendor's library, and its returning GPUs."""

    access: BusAccess = field(default_factory=lambda: BusAccess(Roots(), ChildWriter()))
    library: LibraryPause = field(default_factory=NothingToRelease)
    returning: ReturningGpus = field(default_factory=NoneReturning)


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
        functions = tuple(MovedFunction(function.address, function.driver) for function in group.functions)
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
        found = (read_function(self._access.roots, function.address) for function in recorded.functions)
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
