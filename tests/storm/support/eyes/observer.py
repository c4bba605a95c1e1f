"""The observer: who has which device, by what the kernel, the hardware and the CDI folder show.

In: containers that were started, answers that were given, and Unprepares that are about to be sent. Out: what is wrong.
Any two prepared claims may be used by one container, in which what the file of one mounts and sets must not replace
what the file of the other does; only a container with two claims under MPS is nothing that anybody may ask for.
It knows neither the driver's ledger nor its code. A claim uses a device from the answer of Prepare until Unprepare
is sent, and by each of its processes for as long as that has a node of the device.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from dra_driver.base.errors import NodeError
from tests.storm.support.node.cluster import Claim
from tests.storm.support.node.container_host import Container, Node
from tests.storm.support.node.devices import (
    ADDRESSES,
    MAJOR,
    SHARED,
    Partition,
    Unit,
    address_of,
    is_common,
    is_passed,
    nodes_of,
    partition_of,
    units_of_nodes,
)
from tests.storm.support.node.kubelet import StormKubelet
from tests.storm.support.node.machine import Machine

CHECK_S = 0.08


@dataclass(eq=False)
class Use:
    """A use of devices by a claim: as answered, or by a process."""

    claim: Claim
    units: set[Unit]
    since: float
    nodes: set[int]
    partitions: set[Partition]
    names: Mapping[str, str] = field(default_factory=dict)  # what its file mounts and sets
    container: Container | None = None  # None: the claim is prepared
    is_open: bool = False  # whether the process has the nodes open; else it may open them any time

    def __str__(self) -> str:
        if self.container is None:
            return f"{self.claim}, prepared"
        how = "has its nodes open" if self.is_open else "has its nodes"
        return f"{self.claim}, process {self.container.pid} of pod {self.container.pod} {how}"

    def addresses(self) -> set[str]:
        return {address for address, _ in self.units}

    def conflicts_with(self, other: Use) -> set[Unit]:
        """Return what both use; a claim's own uses, and shares, do not conflict."""
        if self.claim is other.claim:
            return set()
        are_shares = self.claim.is_shared and other.claim.is_shared
        return {unit for unit in self.units & other.units if not (are_shares and unit[0] == SHARED)}


class Observer:
    """Watches one node. Any thread may call any method."""

    def __init__(self, machine: Machine, kubelet: StormKubelet) -> None:
        self._machine, self._kubelet = machine, kubelet
        self._mutex = threading.Lock()
        self._held: dict[str, Use] = {}
        self._running: list[Use] = []
        self._resets: Mapping[str, str] = {}
        self._looked_at = time.monotonic()
        self.wrong: list[str] = []
        self.checks = 0

    # -- what happens

    def prepared(self, claim: Claim, answered: set[str]) -> None:
        """Record that Prepare was answered: from now on the claim has its devices."""
        with self._mutex:
            if answered != set(claim.devices):
                self._found(f"{claim} was given {sorted(answered)}")
            if claim.uid not in self._held:
                numbers = self._numbers(claim)
                if numbers is None:
                    return
                expected = {number for device in claim.devices for number in nodes_of(device)}
                if numbers != expected:
                    self._found(f"{claim} was given other nodes than its devices': {numbers ^ expected}")
                partitions = {found for device in claim.devices if (found := partition_of(device))}
                units = units_of_nodes(numbers, partitions)
                use = Use(claim, units, time.monotonic(), numbers, partitions, self._kubelet.names(claim))
                self._check_names(use)
                self._held[claim.uid] = use
            self._check()

    def leaves(self, claim: Claim) -> None:
        """Record that Unprepare is about to be sent: only the claim's processes use its devices from now on."""
        with self._mutex:
            self._held.pop(claim.uid, None)

    def unprepared(self, claim: Claim) -> None:
        """Record that Unprepare was answered."""
        with self._mutex:
            if any(self._kubelet.cdi_dir.glob(f"*{claim.uid}*")):
                self._found(f"{claim} was unprepared and has its CDI file")
            self._check()

    def started(self, claim: Claim, container: Container) -> None:
        """Record a container; what it uses is read from the kernel."""
        with self._mutex:
            numbers = {number for number in container.open_nodes() | container.nodes() if _is_device(number)}
            is_open = bool(numbers & container.open_nodes())
            partitions = {found for device in claim.devices if is_open and (found := partition_of(device))}
            units = units_of_nodes(numbers, partitions)
            use = Use(claim, units, time.monotonic(), numbers, partitions, container=container, is_open=is_open)
            self._running.append(use)
            self._check()

    # -- what is used

    def used_beside(self, claim: Claim) -> set[Unit]:
        """Return what claims other than this one use, as far as this one can't share it."""
        with self._mutex:
            uses = [*self._held.values(), *(use for use in self._running if _is_alive(use))]
        return {
            unit
            for use in uses
            if use.claim is not claim and not (use.claim.is_shared and claim.is_shared)
            for unit in use.units
        }

    def used(self) -> set[Unit]:
        """Return everything that claims use."""
        with self._mutex:
            uses = [*self._held.values(), *(use for use in self._running if _is_alive(use))]
        return {unit for use in uses for unit in use.units}

    def may_miss_partition(self, claim: Claim) -> bool:
        """Return whether a Prepare of a claim may be refused because a partition of it does not exist."""
        gpus = {address_of(device) for device in claim.devices if partition_of(device)}
        return any(self._machine.may_miss(gpu, claim.asked_at, is_prepared=claim.is_prepared) for gpu in gpus)

    def check(self) -> None:
        """Look at everything."""
        with self._mutex:
            self._check()

    # -- the checks; the caller has the mutex

    def _check(self) -> None:
        self.checks += 1
        # The hardware is read before the processes: one that lives now has lived when the hardware was read.
        now = time.monotonic()
        partitions, resets = self._machine.partitions(), self._machine.resets()
        drivers = {address: self._machine.driver_of(address) for address in ADDRESSES}
        self._running = [use for use in self._running if _is_alive(use)]
        uses = [*self._held.values(), *(use for use in self._running if use.nodes)]
        for one, other in combinations(uses, 2):
            if both := one.conflicts_with(other):
                self._found(f"{_listed(both)} has two holders: {one}; {other}")
        self._check_resets(uses, resets, now)
        self._check_hardware(uses, partitions, drivers)
        for use in self._held.values():
            if (numbers := self._numbers(use.claim)) is not None and numbers != use.nodes:
                self._found(f"the CDI file of {use} names other nodes than before")

    def _check_names(self, use: Use) -> None:
        """Compare what a claim's file mounts and sets with the files of all other claims."""
        for other in self._held.values():
            if use.claim.is_mps and other.claim.is_mps:
                continue
            for name in sorted(use.names.keys() & other.names.keys()):
                if use.names[name] != other.names[name]:
                    what = f"{use.names[name]} and {other.names[name]}"
                    self._found(f"a container with {use} and {other} gets both {what} as {name}")

    def _check_hardware(self, uses: list[Use], partitions: set[Partition], drivers: Mapping[str, str]) -> None:
        for use in uses:
            gone = {one for one in use.partitions - partitions if not self._has_lost(use, one[0])}
            if gone:
                self._found(f"{use} has lost {sorted(gone)}")
            for device in use.claim.devices:
                driver = drivers[address_of(device)]
                if is_passed(device) and driver != "vfio-pci" and not _is_ending(use):
                    self._found(f"{use}: the GPU for its virtual machine is bound to {driver!r}")
                elif not is_passed(device) and driver == "vfio-pci":
                    self._found(f"{use}: its GPU is bound to {driver!r}")
        is_shared = any(
            SHARED in use.addresses() and use.claim.is_shared and not self._has_lost(use, SHARED)
            for use in self._held.values()
        )
        if is_shared and not self._machine.time_slices():
            self._found("shares of a GPU are held, but its time slice is the default")

    def _has_lost(self, use: Use, address: str) -> bool:
        """Return whether a GPU itself has lost what was made and set for this use."""
        return self._machine.has_returned(address, use.claim.asked_at)

    def _check_resets(self, uses: list[Use], marks: Mapping[str, str], now: float) -> None:
        """Find GPUs that were reset since the last look, under a claim that used them then and still does."""
        for address, mark in marks.items():
            if self._resets.get(address) == mark:
                continue
            for use in uses:
                if address in use.addresses() and use.since < self._looked_at:
                    self._found(f"GPU {address} was reset under {use}")
        self._resets, self._looked_at = marks, now

    def _numbers(self, claim: Claim) -> set[int] | None:
        """Return the nodes of the claim's devices that CDI files name; None, and a finding, if they name none."""
        try:
            nodes = self._kubelet.nodes(claim)
        except NodeError as error:
            self._found(f"{claim}, which is prepared, has no usable CDI file: {error}")
            return None
        return {number for number in _device_numbers(nodes) if _is_device(number)}

    def _found(self, what: str) -> None:
        self.wrong.append(f"{what} ({time.strftime('%H:%M:%S')})")


def _is_alive(use: Use) -> bool:
    """Return whether a process lives and still has its devices open."""
    return use.container is not None and use.container.is_alive()


def _is_ending(use: Use) -> bool:
    """Return whether a process only ends: a kernel takes no GPU from a virtual machine before its files are closed."""
    return use.container is not None and use.container.is_ending()


def _device_numbers(nodes: list[Node]) -> Iterator[int]:
    yield from (os.makedev(major, minor) for _, major, minor in nodes)


def _is_device(number: int) -> bool:
    return os.major(number) == MAJOR and not is_common(number)


def _listed(units: set[Unit]) -> str:
    addresses = sorted({address for address, _ in units})
    return ", ".join(f"GPU {one} (slices {sorted(n for a, n in units if a == one)})" for one in addresses)
