"""Scanner: reads the hardware regularly and reports changes.

A cheap probe runs every two seconds. A full discovery runs when the probe's answer has changed, and once a minute in
case the probe misses something. A change that this agent made itself starts no discovery (`OwnChanges`): only the
partitions of that GPU are read again. An event only makes the next probe happen sooner: the facts always come from the
hardware itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.machine import boot_time
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import DeviceTaints
from dra_driver.hardware.facts import MIXED, Facts, GpuFacts, mixed_mig_problems
from dra_driver.hardware.port import Fingerprint, Hardware, Partitionable, Resettable
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.devices.partitions import STATIC, MigPolicy
from dra_driver.node.devices.rules import NOTHING_SHARED, SharingRules
from dra_driver.node.health.taints import DevicePlace

READ_SECONDS = 5.0


class OwnChanges:
    """The GPUs whose MIG mode or partitions this agent is changing, or has changed since the last look.

    Any thread may change a GPU, and any thread may look at the hardware. A change may last longer than the time between
    two looks, so each look during a change has to know of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()  # the number of changes, by PCI address
        self._ended: set[str] = set()

    def change(self, gpu: GpuFacts) -> AbstractContextManager[None]:
        """Return a context in which the GPU counts as changed by this agent; so it does in the first look after it."""
        return _Change(self, gpu.pci_address)

    def begin(self, address: str) -> None:
        """Begin a change of the GPU at a PCI address."""
        with self._lock:
            self._under_way[address] += 1

    def end(self, address: str) -> None:
        """End a change of the GPU at a PCI address."""
        with self._lock:
            self._under_way[address] -= 1
            self._ended.add(address)

    def take(self) -> frozenset[str]:
        """Return the PCI addresses of the changed GPUs, and forget those whose changes have ended."""
        with self._lock:
            taken = frozenset(self._ended) | frozenset(+self._under_way)
            self._ended.clear()
        return taken


class _Change:
    """The context of `OwnChanges.change`. A generator would cost more time."""

    __slots__ = ("_address", "_changes")

    def __init__(self, changes: OwnChanges, address: str) -> None:
        self._changes, self._address = changes, address

    def __enter__(self) -> None:
        self._changes.begin(self._address)

    def __exit__(self, *_: object) -> None:
        self._changes.end(self._address)


def facts_after(
    facts: Facts, addresses: Collection[str], hardware: Partitionable, limits_memory: Mapping[str, bool]
) -> Facts | None:
    """Return the facts with those about MIG read again for the GPUs at these PCI addresses.

    `limits_memory` holds, by PCI address, whether a GPU's memory can be limited while MIG mode is off; with MIG mode
    on it can't. Raises: HardwareError.
    """
    if any(problem.subject in addresses and problem.code != MIXED for problem in facts.problems):
        return None  # only a discovery finds out which of a GPU's problems have ended
    gpus = []
    for gpu in facts.gpus:
        now = _read(gpu, hardware, limits_memory) if gpu.pci_address in addresses else gpu
        if now is None:
            return None
        gpus.append(now)
    kept = (problem for problem in facts.problems if problem.code != MIXED)
    return replace(facts, gpus=tuple(gpus), problems=(*kept, *mixed_mig_problems(tuple(gpus), facts.driver_version)))


def _read(gpu: GpuFacts, hardware: Partitionable, limits_memory: Mapping[str, bool]) -> GpuFacts | None:
    is_enabled = hardware.mig_mode(gpu, READ_SECONDS)
    if not is_enabled and gpu.pci_address not in limits_memory:
        return None
    return replace(
        gpu,
        mig_enabled=is_enabled,
        partitions=hardware.partitions_now(gpu),
        unusable=hardware.unusable_now(gpu),
        limits_memory=not is_enabled and limits_memory[gpu.pci_address],
    )


# ChangeListener: the object that the parts of the agent notify of changes; it decides what follows from each.


class ChangeListener(Protocol):
    """The receiver of changes. Any thread may report one."""

    def inventory_changed(self) -> None:
        """React to a new inventory, or to device nodes that may have changed."""

    def driver_changed(self) -> None:
        """React to a loaded driver that is not the one whose library this process has open."""

    def other_drivers_changed(self) -> None:
        """React to other software on the node that started or ended, or that took or released devices."""

    def same_name_drivers_left(self) -> None:
        """React to the end of the last other driver that was registered under our name."""

    def health_changed(self, taints: DeviceTaints) -> None:
        """React to the taints that the devices have now."""

    def validation_changed(self) -> None:
        """React to a change of the devices that are held back, or that have failed a test."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """React to the answer to a call of the kubelet for one claim."""

    def role_gained(self) -> None:
        """React to getting the node's role: from now on this instance publishes and cleans up for the node."""

    def role_lost(self) -> None:
        """React to losing the node's role."""

    def tidy(self) -> int:
        """Do what the instance with the role does once a minute; return how many things were changed."""


# Node inventory: the newest inventory of this node, and the findings from which it was built.

NOT_READ_YET = Inventory(waiting_for="the first scan of the hardware")


@dataclass(frozen=True, slots=True)
class InventoryInputs:
    """What an inventory is built from: the facts, how MIG is offered, whose the partitions are, and what is shared."""

    facts: Facts
    policy: MigPolicy = STATIC
    sharing: SharingRules = NOTHING_SHARED


class NodeInventory:
    """The newest inventory of one node, which is `NOT_READ_YET` until the hardware has been read."""

    def __init__(self) -> None:
        self._findings: InventoryInputs | None = None
        self.current: Inventory = NOT_READ_YET

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read, offered or not."""
        return self._findings.facts.gpus if self._findings is not None else ()

    def take(self, findings: InventoryInputs) -> Inventory:
        """Build the inventory from new findings, and return the previous one, which stays if nothing has changed."""
        before, self._findings = self.current, findings
        built = build_inventory(findings.facts, findings.policy, findings.sharing)
        if built != before:
            self.current = built
        return before

    @property
    def facts(self) -> Facts | None:
        """The facts behind the newest inventory; None until the hardware has been read."""
        return self._findings.facts if self._findings else None

    def holding(self, names: Collection[str]) -> Inventory:
        """Return the newest inventory as if claims also held these devices. The hardware is not read."""
        if self._findings is None:
            return self.current
        policy = self._findings.policy
        ownership = replace(policy.ownership, held=policy.ownership.held.union(names))
        return build_inventory(self._findings.facts, replace(policy, ownership=ownership), self._findings.sharing)


log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
FULL_SECONDS = 60.0
DRIVER_CHANGED = "hardware.driver-changed"


class FactsStage(Protocol):
    """A stage between the facts of the hardware and the inventory: it completes the facts, and decides on the offer."""

    @property
    def is_settled(self) -> bool:
        """Return whether the last inputs are final; if not, the hardware has to be read again soon."""

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the facts, read again or completed where needed, and how they are offered. Raises: DriverError."""


class Scanner:
    """A thread that keeps `inventory` up to date.

    It reports each new inventory and each change that the probe saw to the listener and, once, that the loaded driver
    is no longer the one whose library this process has open.
    """

    def __init__(
        self,
        hardware: Hardware,
        inventory: NodeInventory,
        stage: FactsStage,
        *,
        own_changes: OwnChanges,
        listener: ChangeListener,
        probe_s: float = PROBE_SECONDS,
        full_s: float = FULL_SECONDS,
    ) -> None:
        self._hardware, self._inventory, self._stage = hardware, inventory, stage
        self._own_changes, self._listener = own_changes, listener
        self._probe_s, self._full_s = probe_s, full_s
        self._is_paused = False
        self._is_released = False
        self._releases = 0  # how many callers have asked for the library to be released for a moment
        self._releasing = threading.Lock()
        self._released = threading.Event()
        self._fingerprint: tuple[Hashable, Hashable] = (None, None)
        self._scanned_at = float("-inf")
        self._asks, self._answered = 0, 0  # a request that comes during a scan causes another scan
        self._loop = Loop("scanner", self._turn, failure="hardware scan failed", fault_s=probe_s, hang_s=math.inf)
        self._facts: Facts | None = None  # the facts of the last discovery
        self._limits_memory: dict[str, bool] = {}  # by PCI address, as read while MIG mode was off
        self.scans = 0
        self.scan_seconds = 0.0
        self.looked_at = 0.0  # when the last complete discovery began, in boot time

    def start(self) -> None:
        """Start the thread, which reports the first inventory to the listener as soon as it is known."""
        self._loop.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread. It is a daemon: if it hangs in a hardware call, it is left behind."""
        self._loop.stop(timeout_s)

    def run_soon(self) -> None:
        """Make a full discovery now rather than at the next probe."""
        self._asks += 1
        self._loop.wake()

    def pause(self) -> None:
        """Release the vendor's library until `resume`, so that the driver can be unloaded."""
        self._is_paused = True
        self._loop.wake()

    def release(self, timeout_s: float) -> bool:
        """Release the vendor's library for a moment, and return whether that was done within `timeout_s`.

        Calls about GPUs wait until `reacquire`, which has to be called even if the library was not released in time.
        """
        if not isinstance(self._hardware, Resettable):
            return False
        with self._releasing:
            self._releases += 1
            if self._releases == 1 or not self._is_released:
                self._released.clear()
                self._is_released = False
        self._loop.wake()
        return self._released.wait(timeout_s) and self._hardware.is_closed()

    def resume(self) -> None:
        """Use the hardware again after `pause`."""
        self._is_paused = False
        self.run_soon()

    def reacquire(self) -> None:
        """Use the hardware again after `release`, unless another release or `pause` is in effect."""
        with self._releasing:
            self._releases = max(0, self._releases - 1)
            is_last = not self._releases
        if is_last:
            self.run_soon()

    @property
    def is_paused(self) -> bool:
        """Return whether the vendor's library is released until `resume`."""
        return self._is_paused

    def _turn(self) -> float | None:
        try:
            self._step()
        except DriverError as error:
            if error.code == DRIVER_CHANGED:
                log.warning("the loaded driver changed", extra=fields(err=str(error)))
                self._listener.driver_changed()
                return None
            log.warning("hardware scan failed", extra=fields(code=error.code, err=str(error)))
        return self._probe_s

    def _step(self) -> None:
        if self._is_paused or self._releases:
            if not self._is_released:
                if self._releases and isinstance(self._hardware, Resettable):
                    self._hardware.await_return()
                self._hardware.close()
                self._is_released = True
                self._released.set()
                log.info("vendor's library released")
            return
        self._is_released = False
        asked, own = self._asks, self._own_changes.take()
        fingerprint = (self._hardware.fingerprint(), self._stage.fingerprint())
        now = time.monotonic()
        is_due = asked != self._answered or now - self._scanned_at >= self._full_s
        if not is_due and fingerprint == self._fingerprint:
            return
        is_seen = asked != self._answered or fingerprint != self._fingerprint
        facts = None if is_due else self._after_own_change(fingerprint, own)
        what = "own changes of partitions read" if facts else "hardware scanned"
        self._take(facts or self._discover(now, asked), what, is_seen=is_seen)
        self._fingerprint = fingerprint

    def _discover(self, now: float, asked: int) -> Facts:
        began = boot_time()
        facts = self._hardware.discover()
        self._scanned_at, self._answered = now, asked
        self.looked_at = began
        self.scans += 1
        self.scan_seconds = time.monotonic() - now
        self._limits_memory = {
            gpu.pci_address: self._limits_memory.get(gpu.pci_address, False) if gpu.mig_enabled else gpu.limits_memory
            for gpu in facts.gpus
            if not gpu.mig_enabled or gpu.pci_address in self._limits_memory
        }
        return facts

    def _after_own_change(self, fingerprint: tuple[Hashable, Hashable], own: frozenset[str]) -> Facts | None:
        """Return the facts as they are now if nothing but this agent changed the hardware, otherwise None."""
        (now, stage_now), (before, stage_before) = fingerprint, self._fingerprint
        if not own or self._facts is None or stage_now != stage_before:
            return None
        if not isinstance(now, Fingerprint) or not isinstance(before, Fingerprint) or now.others_differ(before, own):
            return None
        if not isinstance(self._hardware, Partitionable):
            return None
        try:
            return facts_after(self._facts, own, self._hardware, self._limits_memory)
        except DriverError:
            return None  # a discovery will find out what is wrong

    def _take(self, facts: Facts, what: str, *, is_seen: bool) -> None:
        """Let the stages assess the facts, and report the inventory that follows from them."""
        findings = self._stage.assess(facts)
        self._facts = findings.facts
        if not self._stage.is_settled:
            self._asks += 1  # a full discovery follows at the next probe, whatever the probe returns
        before = self._inventory.take(findings)
        if self._inventory.current is not before:
            self._log(what, before, self._inventory.current)
            self._listener.inventory_changed()
        elif is_seen:  # device nodes may have changed although no device did
            self._listener.inventory_changed()

    def _log(self, what: str, before: Inventory, inventory: Inventory) -> None:
        known = set(before.problems)
        for problem in inventory.problems:
            if problem not in known:
                log.warning(
                    "hardware problem", extra=fields(code=problem.code, device=problem.subject, problem=problem.message)
                )
        log.info(
            what,
            extra=fields(
                devices=len(inventory.devices),
                count=len(inventory.problems),
                took_ms=round(self.scan_seconds * 1000),
                **({"reason": inventory.waiting_for} if inventory.waiting_for else {}),
            ),
        )


# Device places: where on its GPU each published device is, which decides the devices that a fault affects.


def place_of(device: Device) -> DevicePlace:
    """Return a device's place: its GPU and, for a partition, profile and first memory slice."""
    at = None
    if device.placement is not None:
        at = (device.placement.profile.gi_profile_id, device.placement.start)
    elif device.partition is not None:
        at = (device.partition.gi_profile_id, device.partition.start)
    return DevicePlace(device.name, device.gpu.pci_address, at, device.shared_name)
