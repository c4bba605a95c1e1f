"""Node locks: locks by name, for claims and devices, that hold between threads and between the agents of a node.

There is never one lock for the whole node: calls that share no name run at the same time. The kernel releases the locks
of a dead process. An Unprepare gets a lock before all Prepares that wait for it in this process, because it frees what
they are waiting for. Each name is one byte of one file, locked for the open file description (F_OFD_SETLK): nothing is
written, and no file per claim is left behind. Calls for two names that map to the same byte merely wait for each other.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import NodeError, PrepareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.names import gpu_name, is_of_gpu, partition_name, replica_name, vfio_name
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.claims.plan import MigModeStep, PassthroughStep, Step
from dra_driver.node.devices.offering import CurrentInventory
from dra_driver.node.devices.rules import MAX_REPLICAS
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.recorded_steps import RecordedMode, RecordedPassthrough, RecordedStep

_MAX_NAMED = 5  # claims in one message
LOCKED = "prepare.locked"  # the code of the error that names a lock which did not become free

_POLL_SECONDS = 0.005  # polled, because the kernel can't wake us at a deadline
# struct flock: l_type, l_whence, l_start, l_len, l_pid (0 for locks of the open file description)
_FLOCK = struct.Struct("hhqqi")
_SET_LOCK = fcntl.F_OFD_SETLK


class _LocalLock:
    """This process's part of a lock that several calls use; at first it belongs to the call that was alone until then.

    `users` is the number of calls that have the lock or wait for it, and `first` how many of those wait and go first.
    """

    __slots__ = ("first", "lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.users, self.first = 1, 0


class NodeLocks:
    """The locks in the file `path`, which every agent on the node opens."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("lock-file", f"lock file {path} can't be opened: {exc.strerror}") from exc
        self._mutex = threading.Lock()
        self._locals: dict[str, _LocalLock | None] = {}  # by the names in use; None if only the holder uses a name

    def hold(self, names: Iterable[str], deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context that holds the locks of all names.

        They are taken in sorted order, so that two callers can't block each other forever. Entering the context raises
        PrepareError("prepare.locked", LATER), which names the lock that did not become free before the deadline.
        """
        return _HeldLocks(self, sorted(set(names)), deadline)

    def close(self) -> None:
        """Close the file, which releases every lock."""
        os.close(self._fd)

    def take(self, name: str, deadline: Deadline) -> None:
        """Take the lock of one name. Raises: as `hold`."""
        with self._mutex:  # threads of this process first agree among themselves
            local = self._locals[name] = self._joined(name) if name in self._locals else None
        if local is not None and not self._take_from_threads(local, deadline):
            self._leave(name, local)
            raise _locked(name)
        try:
            self._take_from_processes(name, deadline)
        except BaseException:
            self._pass_on(name)
            raise

    def _joined(self, name: str) -> _LocalLock:
        """Return this process's part of a lock that another call uses too, after counting this call."""
        local = self._locals[name] or _LocalLock()
        local.users += 1
        return local

    def _take_from_threads(self, local: _LocalLock, deadline: Deadline) -> bool:
        """Wait until no other thread of this process has the lock; calls that go first get it before all others."""
        with self._mutex:
            if (deadline.goes_first or not local.first) and local.lock.acquire(blocking=False):
                return True
        if deadline.goes_first:
            with self._mutex:
                local.first += 1
            try:
                return local.lock.acquire(timeout=deadline.remaining())
            finally:
                with self._mutex:
                    local.first -= 1
        while local.lock.acquire(timeout=deadline.remaining()):
            if not local.first:
                return True
            local.lock.release()
            time.sleep(_POLL_SECONDS)
        return False

    def _take_from_processes(self, name: str, deadline: Deadline) -> None:
        """Wait until no other process has the lock, and take it."""
        while True:
            try:
                fcntl.fcntl(self._fd, _SET_LOCK, _kernel_requests(name)[0])
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return
            if deadline.has_passed():
                raise _locked(name)
            time.sleep(_POLL_SECONDS)

    def release(self, name: str) -> None:
        """Release the lock of one name, which this thread has."""
        fcntl.fcntl(self._fd, _SET_LOCK, _kernel_requests(name)[1])
        self._pass_on(name)

    def _pass_on(self, name: str) -> None:
        """Let another thread of this process have the lock."""
        with self._mutex:
            local = self._locals[name]
            if local is None:
                del self._locals[name]
                return
        local.lock.release()
        self._leave(name, local)

    def _leave(self, name: str, local: _LocalLock) -> None:
        with self._mutex:
            local.users -= 1
            if not local.users:
                del self._locals[name]


class _HeldLocks:
    """Holds the locks of some names for the length of a `with` block. A generator would cost more time."""

    __slots__ = ("_deadline", "_locks", "_names", "_taken")

    def __init__(self, locks: NodeLocks, names: list[str], deadline: Deadline) -> None:
        self._locks, self._names, self._deadline = locks, names, deadline
        self._taken: list[str] = []

    def __enter__(self) -> None:
        try:
            for name in self._names:
                self._locks.take(name, self._deadline)
                self._taken.append(name)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._taken:
            self._locks.release(self._taken.pop())


def claim_lock(uid: str) -> str:
    """Return the name of a claim's lock."""
    return f"claim/{uid}"


def device_lock(device: str) -> str:
    """Return the name of a device's lock, which is taken after those of claims."""
    return f"device/{device}"


def gpu_lock(pci_address: str) -> str:
    """Return the name of a GPU's lock.

    It is taken after the locks of claims and devices (`GpuHolds` has the order of all locks).
    """
    return f"gpu/{pci_address}"


def _kernel_requests(name: str) -> tuple[bytes, bytes]:
    """Return the requests with which the kernel locks and unlocks the byte of a name."""
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    return lock, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0)


def _locked(name: str) -> PrepareError:
    return PrepareError("locked", f"another call is still working on {name}", retry=Retry.LATER)


# The validation lock: it lets one test run on a node at a time; a claim that arrives ends the test.

FILE_NAME = "validation.lock"
INTERRUPT_SECONDS = 2.0
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Mark:
    """The content of the file: the device, by its name, and the test's process, by its pid and when it began."""

    device: str
    pid: int
    began: str

    def concerns(self, devices: Collection[str]) -> bool:
        return any(overlap(name, self.device) for name in devices)

    def kill(self) -> None:
        """End the process and its group, unless the pid belongs to another process by now."""
        with suppress(OSError):
            life = os.pidfd_open(self.pid)  # from now on `began_at` shows if the pid belongs to another process
            try:
                if began_at(self.pid) == self.began:
                    os.killpg(self.pid, signal.SIGKILL)
            finally:
                os.close(life)


class HeldValidationLock:
    """The lock while it is held; `fd` is to be inherited by the test's process."""

    def __init__(self, fd: int, device: str) -> None:
        self.fd, self._device = fd, device
        self._write("", 0)

    def started(self, pid: int) -> None:
        """Record the process, so that a claim can end it."""
        self._write(began_at(pid), pid)

    def _write(self, began: str, pid: int) -> None:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, (json.dumps({"device": self._device, "pid": pid, "began": began}) + "\n").encode(), 0)


class ValidationLock:
    """The lock of one node. Any thread of any process may use it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    @contextmanager
    def take(self, device: str, patience_s: float) -> Iterator[HeldValidationLock]:
        """Hold the lock for one device, by its name.

        Raises: NodeError("node.validation-busy", LATER) while another device is tested, NodeError("node.lock-file").
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NodeError("lock-file", f"{self._path} can't be opened: {error.strerror}") from error
        try:
            until = time.monotonic() + patience_s
            while not _locked_validation_lock(fd, fcntl.LOCK_EX):
                if time.monotonic() >= until:
                    raise NodeError("validation-busy", "another device is being tested", retry=Retry.LATER)
                time.sleep(10 * _POLL_SECONDS)
            yield HeldValidationLock(fd, device)
            with suppress(OSError):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def interrupt(self, devices: Collection[str], patience_s: float = INTERRUPT_SECONDS) -> None:
        """End a test that concerns any of these devices, by name, and wait until its process is gone.

        Call this once the ledger records that the devices are held. If no test runs, it costs a few microseconds.

        Raises: PrepareError("prepare.validation-hangs", LATER).
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            until = time.monotonic() + patience_s
            while not _locked_validation_lock(fd, fcntl.LOCK_SH):
                mark = _read(fd)
                if mark is not None and not mark.concerns(devices):
                    return
                if mark is not None and mark.pid:
                    mark.kill()
                if time.monotonic() >= until:
                    raise _hangs(mark)
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(fd)


def overlap(one: str, other: str) -> bool:
    """Return whether two devices, by their names, are the same, or one is a part or a share of the other.

    >>> overlap("gpu-0000-65-00-0", "gpu-0000-65-00-0-mig-1g10gb-19-2"), overlap("gpu-0000-65-00-0", "gpu-0000-65-00-1")
    (True, False)
    """
    return one == other or one.startswith((f"{other}-", f"{other}/")) or other.startswith((f"{one}-", f"{one}/"))


def began_at(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _locked_validation_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> _Mark | None:
    """Return the content of the file; None while it is being written."""
    try:
        wire = json.loads(os.pread(fd, _MAX_BYTES, 0))
        return _Mark(str(wire["device"]), int(wire["pid"]), str(wire["began"]))
    except (ValueError, KeyError, TypeError):
        return None


def _hangs(mark: _Mark | None) -> PrepareError:
    what = f"process {mark.pid} of the test of {mark.device}" if mark else "the test of a device"
    hint = "the GPU may hang; the kubelet will try again"
    return PrepareError("validation-hangs", f"{what} was killed and does not end", hint=hint, retry=Retry.LATER)


# GPU holds: the one way to a GPU of which something is about to be destroyed, reset, or taken from its driver.


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
        more = f" and {len(claims) - _MAX_NAMED} more" if len(claims) > _MAX_NAMED else ""
        text = f"{error.message}; {', '.join(claims[:_MAX_NAMED])}{more} has devices of the GPU"
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
