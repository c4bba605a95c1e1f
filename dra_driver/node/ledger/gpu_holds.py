"""GPU holds: the one way to a GPU of which something is about to be destroyed, reset, or taken from its driver."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from dra_driver.base.errors import PrepareError
from dra_driver.base.names import gpu_name, is_of_gpu, partition_name, replica_name, vfio_name
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.claims.claim_on_node import Deadline
from dra_driver.node.claims.plan import MigModeStep, PassthroughStep, Step
from dra_driver.node.devices.offering import CurrentInventory
from dra_driver.node.devices.rules import MAX_REPLICAS
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import LOCKED, NodeLocks, device_lock, gpu_lock
from dra_driver.node.ledger.recorded_steps import (
    RecordedMode,
    RecordedPassthrough,
    RecordedStep,
)

# GPU holds: the one way to a GPU of which something is about to be destroyed, reset, or taken from its driver.

MAX_NAMED = 5


class GpuHolds:
    """The holds of one node's GPUs. Any thread may call any method, in each of two agents on one node.

    The names of most devices follow from the facts of their GPU. `inventory`, if there is one, knows the others.
    """

    def __init__(self, locks: NodeLocks, ledger: Ledger, inventory: CurrentInventory | None = None) -> None:
        self._locks, self._ledger, self._inventory = locks, ledger, inventory

    @contextmanager
    def hold(self, gpus: Sequence[GpuFacts], deadline: Deadline) -> Iterator[Mapping[str, str]]:
        """Hold these GPUs and all their devices, and yield what the ledger has of them now: who holds each device.

        The keys are names of devices and of parts of GPUs ("gpu-0000-65-00-0/memory-slice-0"), the values name the
        claims, for messages. Claims that were unprepared and whose containers may still run are among them; claims that
        are allocated and were never prepared are not, and neither is admin access. The mapping is empty if no claim has
        anything of these GPUs. It stays true until the context ends: the caller acts within it, or changes nothing.

        `gpus` may be one GPU, or all that are acted on together: their locks are taken in one sorted hold, so that two
        callers can't block each other. The caller may hold the lock of a claim, but none of a device or a GPU, and
        `hold` must not be entered again within the context. The context ends in the thread that entered it.

        Entering it raises: PrepareError("prepare.locked", LATER) if the locks are not free before the deadline, which
        names the lock and the claims that have something of these GPUs; LedgerError. No lock is held then.
        """
        with ExitStack() as held:
            names: frozenset[str] = frozenset()
            while not names.issuperset(now := self.device_names(gpus)):  # one may appear while this waits for locks
                held.close()
                names = now
                held.enter_context(self._hold(names, gpus, deadline))
            yield self._ledger.holders(_whole_names(gpus))

    def device_names(self, gpus: Sequence[GpuFacts]) -> frozenset[str]:
        """Return the name of every device that a claim may have of these GPUs. Raises: LedgerError.

        These are the whole GPU in each form, its parts, each partition that it has or that may be made of it, as many
        replicas as rules allow of what exists, what the inventory knows and what claims hold.
        """
        wholes = _whole_names(gpus)
        known = self._inventory.current.by_name if self._inventory is not None else ()
        of_inventory = (name for name in known if any(is_of_gpu(name, whole) for whole in wholes))
        held = (name for name in self._ledger.holders(wholes) if "/" not in name)
        return frozenset(of_inventory).union(held, *map(_own_names, gpus))

    def devices_of_steps(self, planned: Iterable[Step], recorded: Iterable[RecordedStep]) -> frozenset[str]:
        """Return every device of the GPUs that these steps take as a whole: from their driver or out of MIG mode.

        The call that carries the steps out, or undoes them, holds these beside its claim's own devices, and the steps
        take the GPU's lock within. Most claims have no such step. Raises: LedgerError.
        """
        gpus = [step.gpu for step in planned if isinstance(step, (MigModeStep, PassthroughStep))]
        gpus += [step.gpu.facts() for step in recorded if isinstance(step, (RecordedMode, RecordedPassthrough))]
        return self.device_names(gpus) if gpus else frozenset()

    @contextmanager
    def _hold(self, names: Collection[str], gpus: Sequence[GpuFacts], deadline: Deadline) -> Iterator[None]:
        wanted = [*map(device_lock, names), *(gpu_lock(gpu.pci_address) for gpu in gpus)]
        with ExitStack() as held:
            try:
                held.enter_context(self._locks.hold(wanted, deadline))
            except PrepareError as error:
                raise self._with_holders(error, gpus) from error
            yield

    def _with_holders(self, error: PrepareError, gpus: Sequence[GpuFacts]) -> PrepareError:
        """Return the error with the claims that the call which has the lock may be working on."""
        claims = sorted(set(self._ledger.holders(_whole_names(gpus)).values())) if error.code == LOCKED else []
        if not claims:
            return error
        more = f" and {len(claims) - MAX_NAMED} more" if len(claims) > MAX_NAMED else ""
        text = f"{error.message}; {', '.join(claims[:MAX_NAMED])}{more} has devices of the GPU"
        return PrepareError("locked", text, retry=error.retry)


def with_replicas(device: str) -> Iterator[str]:
    """Yield the name of a device and those of all replicas that may be offered in its place."""
    yield device
    yield from (replica_name(device, index) for index in range(MAX_REPLICAS))


def _whole_names(gpus: Sequence[GpuFacts]) -> tuple[str, ...]:
    return tuple({gpu_name(gpu.pci_address): None for gpu in gpus})


def _own_names(gpu: GpuFacts) -> Iterator[str]:
    """Yield the names of the devices that the facts of one GPU show."""
    address = gpu.pci_address
    existing = (
        partition_name(address, partition.profile, partition.gi_profile_id, partition.start)
        for partition in gpu.partitions
    )
    for name in (gpu.whole_name, *existing):  # nothing else is ever offered as replicas
        yield from with_replicas(name)
    yield from (gpu.name, vfio_name(address))
    for profile in gpu.mig_profiles:
        yield from (partition_name(address, profile.name, profile.gi_profile_id, start) for start in profile.starts)
