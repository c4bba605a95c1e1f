"""Validator: tests one device of this node, unless it is in use.

In: a GPU or partition, a level, and the possible holders of devices. Out: a result. A device is free if no claim and no
process has it. This is checked before the lock is taken, because it may take long, and the ledger is checked once more
afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.names import partition_name
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import ComputeTested, Hardware, ProcessLister
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.health.faults import Subject
from dra_driver.node.health.validation import (
    BUSY,
    HELD,
    INTERRUPTED,
    MEMORY,
    UNSUPPORTED,
    ValidationLevel,
    ValidationResult,
    ValidationVerdict,
)
from dra_driver.node.health.validation_child import ChildEnd, ChildOrder, TestChild, make_cgroup, room_below
from dra_driver.node.health.validation_results import result_of, result_of_command
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import HeldValidationLock, ValidationLock, overlap

# Tested devices: the parts of a node's hardware that are tested on their own.


def unshared_name(gpu: GpuFacts, partition: PartitionFacts | None) -> str:
    """Return the name under which a GPU or partition is published when it is not shared."""
    if partition is None:
        return gpu.whole_name
    return partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)


@dataclass(frozen=True, slots=True)
class TestedDevice:
    """A GPU, or a partition with its GPU."""

    __test__ = False

    gpu: GpuFacts
    partition: PartitionFacts | None = None

    @property
    def uuid(self) -> str:
        """Return the UUID by which a process chooses the device."""
        return (self.partition or self.gpu).uuid

    @property
    def name(self) -> str:
        """Return the name under which it is published when it is not shared."""
        return unshared_name(self.gpu, self.partition)

    @property
    def subject(self) -> Subject:
        """Return the subject of its faults."""
        part = self.partition
        return Subject(self.gpu.pci_address, (part.gi_profile_id, part.start) if part else None)


def devices_to_test(inventory: Inventory) -> tuple[TestedDevice, ...]:
    """Return the devices that can be tested, in the order of their names."""
    every = inventory.by_name.values()
    gpus = {device.gpu.pci_address: device.gpu for device in every if device.gpu.pci_address}  # a channel has no GPU
    usable = (gpu for gpu in gpus.values() if not gpu.is_lost and not _is_passed_through(gpu))
    found = (one for gpu in usable for one in devices_of(gpu))
    return tuple(sorted(found, key=lambda one: one.name))


def _is_passed_through(gpu: GpuFacts) -> bool:
    """Return whether a virtual machine has a GPU, or only virtual machines may have it."""
    return gpu.passthrough is not None and (gpu.passthrough.is_away or gpu.minor < 0)


def devices_of(gpu: GpuFacts) -> Iterator[TestedDevice]:
    """Yield the devices of one GPU that can be tested."""
    if not gpu.mig_enabled:
        yield TestedDevice(gpu)
    for partition in gpu.partitions:
        yield TestedDevice(gpu, partition)


MEMORY_BYTES = 512 << 20  # the machine's memory that the process of one test may use
MIN_BYTES = 192 << 20  # with less memory left, the test is not begun
DEADLINES = {ValidationLevel.COMPUTE: 30.0, ValidationLevel.THOROUGH: 300.0, ValidationLevel.COMMAND: 7200.0}
TURN_SECONDS = 60.0  # how long to wait for the end of another device's test
FAILED, COULD_NOT_RUN = ValidationVerdict.FAILED, ValidationVerdict.COULD_NOT_RUN


class DeviceHolders(Protocol):
    """The users of this node's devices."""

    def holder_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return a text about the user of a device; "" if it is free. This may ask the library and the kubelet."""

    def claims_of(self, device: str) -> str:
        """Return a text about the claims that the ledger has for a device or its parts; "" for none. This is quick."""

    def fault_of(self, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
        """Return the fault of a device that the vendor's library reports; "" if there is none."""


class Validator:
    """Tests devices, one at a time. Any thread may call any method.

    Args:
        hardware: the vendor. Without the ability `ComputeTested`, only level 0 and a command can be run.
        lock: the validation lock of this node.
        holders: the users of this node's devices.
        command: the administrator's command, for level COMMAND. `{uuid}`, `{pci}` and `{minor}` in its arguments are
            replaced.
        deadlines: the deadline of each level, in seconds.
    """

    def __init__(
        self,
        hardware: Hardware,
        lock: ValidationLock,
        holders: DeviceHolders,
        *,
        command: Sequence[str] = (),
        deadlines: Mapping[ValidationLevel, float] = DEADLINES,
    ) -> None:
        self._hardware, self._lock, self._holders = hardware, lock, holders
        self._command, self._deadlines = tuple(command), deadlines
        self._mutex = threading.Lock()
        self._child: TestChild | None = None
        self._is_stopped = False

    def validate(
        self,
        gpu: GpuFacts,
        partition: PartitionFacts | None,
        level: ValidationLevel,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> ValidationResult:
        """Test one device. Every failure is in the result; none is raised.

        `on_step` is called with the name of each step of the test.
        """
        fault = f"gpu-lost: {gpu.pci_address} does not answer" if gpu.is_lost else ""
        fault = fault or self._holders.fault_of(gpu, partition)
        if fault:
            return ValidationResult(FAILED, ValidationLevel.READING, fault.partition(":")[0].split()[0], fault)
        if level is ValidationLevel.READING:
            return ValidationResult(ValidationVerdict.PASSED, level)
        holder = self._holders.holder_of(gpu, partition)
        if holder:
            return ValidationResult(COULD_NOT_RUN, level, HELD, holder)
        try:
            with self._lock.take(device := unshared_name(gpu, partition), TURN_SECONDS) as lock:
                holder = self._holders.claims_of(device)
                if holder:
                    return ValidationResult(COULD_NOT_RUN, level, HELD, holder)
                return self._run(gpu, partition, level, lock, on_step)
        except DriverError as error:
            is_busy = error.code == "node.validation-busy"
            return ValidationResult(COULD_NOT_RUN, level, BUSY if is_busy else error.code, str(error))

    def resume(self) -> None:
        """Allow tests again after `stop`."""
        with self._mutex:
            self._is_stopped = False

    def stop(self) -> None:
        """End the test under way, and begin no other from now on."""
        with self._mutex:
            self._is_stopped = True
            if self._child is not None:
                self._child.kill()

    def _run(
        self,
        gpu: GpuFacts,
        partition: PartitionFacts | None,
        level: ValidationLevel,
        lock: HeldValidationLock,
        on_step: Callable[[str], None],
    ) -> ValidationResult:
        memory = room_below(MEMORY_BYTES)
        if memory < MIN_BYTES:
            detail = f"only {memory >> 20} MiB are left below the memory limit of the agent's container"
            return ValidationResult(COULD_NOT_RUN, level, MEMORY, detail)
        if level is ValidationLevel.COMMAND:
            end = self._listen(self._command_order(gpu, partition, memory), lock, on_step)
            return result_of_command(end) if end else _stopped(level)
        if not isinstance(self._hardware, ComputeTested):
            return ValidationResult(COULD_NOT_RUN, level, UNSUPPORTED, f"no test for {self._hardware.vendor} devices")
        is_thorough = level is ValidationLevel.THOROUGH
        program = self._hardware.compute_program(gpu, partition, is_thorough=is_thorough)
        order = ChildOrder(
            self._deadlines[level],
            memory,
            program.environment,
            program.module,
            program.request,
            inherited=(lock.fd,),  # inherited, so that the lock becomes free only when the process is gone
        )
        end = self._listen(order, lock, on_step)
        return result_of(end, level) if end else _stopped(level)

    def _command_order(self, gpu: GpuFacts, partition: PartitionFacts | None, memory: int) -> ChildOrder:
        uuid = (partition or gpu).uuid
        words = {"{uuid}": uuid, "{pci}": gpu.pci_address, "{minor}": str(gpu.minor)}
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "CUDA_VISIBLE_DEVICES": uuid,
            "DRA_DEVICE_UUID": uuid,
            "DRA_DEVICE_PCI": gpu.pci_address,
        }
        argv = [_replaced(word, words) for word in self._command]
        return ChildOrder(self._deadlines[ValidationLevel.COMMAND], memory, environment, argv=argv)

    def _listen(self, order: ChildOrder, lock: HeldValidationLock, on_step: Callable[[str], None]) -> ChildEnd | None:
        """Run a process to its end; return None if the validator was stopped."""
        cgroup = make_cgroup(order.memory)
        try:
            with self._mutex:
                if self._is_stopped:
                    return None
                child = self._child = TestChild(order, cgroup)
            lock.started(child.pid)
            return child.wait(on_step)
        finally:
            self._child = None
            if cgroup is not None:
                cgroup.remove()


def _replaced(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _stopped(level: ValidationLevel) -> ValidationResult:
    return ValidationResult(COULD_NOT_RUN, level, INTERRUPTED, "the agent ends")


# Device holders: the claims and processes that have a device now, according to the ledger and the vendor's library.


def holding_claims(ledger: Ledger, device: str) -> str:
    """Return a text about a claim that holds a device or a part of it, "" if none does.

    A ledger that can't be read counts as a claim.
    """
    try:
        return held_among(ledger.held(), device)
    except DriverError as error:
        return f"the claims that hold devices can't be read: {error}"


def held_among(held: Collection[str], device: str) -> str:
    """Return a text that a claim holds a device, if the device or a part of it is among the names `held`, else ""."""
    found = sorted(name for name in held if overlap(name, device))
    return f"a claim has {found[0]}" if found else ""


def processes_on(hardware: Hardware, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
    """Return a text about processes that use a device, "" if none does. Processes that can't be listed count as one."""
    if not isinstance(hardware, ProcessLister):
        return ""
    try:
        found = hardware.processes(gpu, partition)
    except DriverError as error:
        return f"the processes that use it can't be read: {error}"
    return f"process {', '.join(map(str, found[:5]))} uses it" if found else ""
