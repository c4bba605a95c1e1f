"""Node offer: the one place that decides what this node offers right now.

    hardware ──facts──► assess ──► inventory ──► decide ──► current ──► slices

`assess` decides how facts become devices: whether partitions are offered on demand or only existing ones, whose these
are, what is shared, and what claims hold. `decide` leaves out the devices that other software on the node hands out or
holds, and those that have to pass a test first. `current` adapts the rest to the fields that the API server keeps.
Devices that claims hold or were just allocated stay offered: before anything is withdrawn, the claims that the ledger
does not know are looked up. Nothing on the node is changed here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import ApiError, DriverError, InputError, LedgerError, NodeError, Retry
from dra_driver.base.machine import stamp_of
from dra_driver.base.names import partition_name, replicated_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceTaint, DeviceTaints, TaintEffect, Tenants
from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.kube.paths import NodeApi
from dra_driver.node.daemon.opened_node import OpenedNode, OtherDrivers
from dra_driver.node.devices.offering import ALL_KEPT, NOTHING, Inventory, KeptFields, Offering
from dra_driver.node.devices.partitions import MigPolicy, Ownership, offer_text
from dra_driver.node.devices.rules import NOTHING_SHARED, SharingRules
from dra_driver.node.neighbours.allocations import AllocatedDevices
from dra_driver.node.prepare.steps.standing_partitions import PartitionOwners
from dra_driver.node.slices.scanner import NOT_READ_YET, InventoryInputs, NodeInventory

# Sharing rules: those in force on this node, kept up to date with their file, the node's labels and existing
# claims.

log = logging.getLogger(__name__)

SETTLE_SECONDS = 90.0  # by then, a device that was allocated when the rules changed is in the ledger or released


class CurrentSharingRules:
    """The rules of one node, for use by a single thread.

    Without a file, nothing is shared and the API is not asked.
    """

    def __init__(
        self,
        path: Path | None,
        node: str,
        *,
        api: NodeApi,
        allocated: AllocatedDevices,
        clock: Callable[[], float] = time.monotonic,
        tenants: Tenants = Tenants.ANY,
    ) -> None:
        self._tenants = tenants
        self._path, self._node, self._api, self._allocated, self._clock = path, node, api, allocated, clock
        self._rules = NOTHING_SHARED
        self._stamp: Hashable = None
        self._labels: Mapping[str, str] | None = None
        self._held: frozenset[tuple[str, bool]] = frozenset()
        self._held_until = 0.0
        self._must_ask = path is not None
        self.problems: tuple[Problem, ...] = ()
        if path is not None:
            self._stamp = self.fingerprint()
            self._rules = _read(path, tenants)

    def fingerprint(self) -> Hashable:
        """Return a value that differs whenever the file has changed; a file that is gone has changed too."""
        return None if self._path is None else stamp_of(self._path)

    def read(self) -> SharingRules:
        """Return the rules in force now. Raises: ApiError while a rule needs labels that were never read."""
        if self._path is None:
            return NOTHING_SHARED
        if (stamp := self.fingerprint()) != self._stamp:
            self._stamp = stamp
            self._read_again(self._path)
        if self._rules.need_labels:
            self._read_labels()
        return replace(self._rules, node=self._node, labels=self._labels or {})

    def with_allocated(self, ownership: Ownership) -> Ownership:
        """Add the devices that were allocated to claims before the rules changed, so that each keeps its form.

        Once the ledger has a device, its form in the ledger is used.

        Raises: DriverError while these devices can't be determined.
        """
        if self._must_ask:
            self._held = self._allocated.forms()
            self._must_ask, self._held_until = False, self._clock() + SETTLE_SECONDS
        known = {name for name, _ in ownership.forms}
        self._held = frozenset(one for one in self._held if one[0] not in known)
        if not self._held or self._clock() > self._held_until:
            return ownership
        return replace(ownership, forms=ownership.forms | self._held)

    def _read_again(self, path: Path) -> None:
        try:
            rules = _read(path, self._tenants)
        except InputError as error:
            self.problems = (Problem("sharing.config", str(path), f"the previous rules stay in force: {error}"),)
            keys = fields(file=str(path), err=str(error))
            log.error("sharing configuration is invalid, the previous one stays in force", extra=keys)  # noqa: TRY400
            return
        self.problems = ()
        if rules != self._rules:
            self._rules, self._must_ask = rules, True

    def _read_labels(self) -> None:
        try:
            node = self._api.get_node(self._node)
        except ApiError:
            if self._labels is None:
                raise
            return
        labels = (node.get("metadata") or {}).get("labels") or {}
        if self._labels is not None and labels != self._labels:
            self._must_ask = True
        self._labels = labels


def _read(path: Path, tenants: Tenants) -> SharingRules:
    """Read the file, and log which parts of it have no effect here. Raises: InputError."""
    from dra_driver.node.claims.config_schema import read_sharing_config

    rules = read_sharing_config(path, tenants)
    log.info("sharing configured", extra=fields(file=str(path), count=len(rules.rules)))
    for note in rules.notes:
        log.warning("part of the sharing configuration has no effect", extra=fields(file=str(path), reason=note))
    return rules


NOT_ON_DEMAND = "MigNotOnDemand"
UNRELEASED = "unreleased"  # the taint's key, after the driver's name


class OfferGate(Protocol):
    """A part of the agent that holds back devices which must not be offered yet."""

    def withheld(self, inventory: Inventory) -> frozenset[str] | None:
        """Return the names of the devices of an inventory that are held back; None while that is not known."""


class NodeOffer:
    """Decides what one node offers. `assess` belongs to one thread; any thread may call the other methods."""

    def __init__(
        self,
        node: OpenedNode,
        inventory: NodeInventory,
        *,
        allocated: AllocatedDevices,
        sharing: CurrentSharingRules,
        other_drivers: OtherDrivers,
        gates: Sequence[OfferGate],
    ) -> None:
        self._options, self._events, self._inventory = node.options, node.events, inventory
        self._owners = PartitionOwners(node.hardware, node.ledger, node.locks, node.identity.boot_id)
        self._allocated_devices, self._sharing = allocated, sharing
        self._other_drivers, self._gates = other_drivers, gates
        self._ownership = Ownership()
        self._allocated: frozenset[str] = frozenset()  # the last answer of the API, kept while placements are withdrawn
        self._looked_for: frozenset[str] = frozenset()  # the withdrawals before which the API was asked
        self._is_unsure = False  # devices would be withdrawn, but it is not known which of them claims were allocated
        self._logged: dict[str, str] = {}
        self._is_reported = False
        self._deciding = threading.RLock()  # ensures that the later of two decisions is made on the newer inventory
        self._keeps = ALL_KEPT  # the fields kept by the server that was asked last
        self._taints: DeviceTaints = {}
        self._unreleased: frozenset[str] = frozenset()  # devices that a process of an ended claim has open
        self._unreleased_shares: frozenset[str] = frozenset()  # likewise, but the claim had shares or replicas of them
        self._decided: tuple[Offering | None] | None = None  # None until everything is known

    # -- from facts to devices -----------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Return whether the last findings are final."""
        return self._owners.is_settled and not self._is_unsure

    def fingerprint(self) -> Hashable:
        """Return a value that differs whenever the sharing rules have changed."""
        return self._sharing.fingerprint()

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the facts and how they are offered. While the ledger can't be read, the last known owners are used.

        Raises: ApiError while a sharing rule needs labels of the node that were never read.
        """
        rules = self._sharing.read()
        try:
            facts, self._ownership = self._owners.determine(facts)
        except LedgerError as error:
            log.warning("cannot determine the owners of partitions", extra=fields(code=error.code, err=str(error)))
        self._look_up_allocated(facts)
        self._ownership = replace(self._ownership, held=self._ownership.held | self._allocated)
        policy = MigPolicy(self._options.is_mig_dynamic, self._options.has_all_profiles, self._ownership)
        self._log(facts, policy)
        return InventoryInputs(facts, replace(policy, ownership=self._sharing.with_allocated(policy.ownership)), rules)

    def _look_up_allocated(self, facts: Facts) -> None:
        """Ask the API which devices claims were allocated, if placements are withdrawn."""
        withdrawn = self._withdrawn(facts)
        offered = _always_offered(facts)
        is_pending = any((replicated_name(name) or name) not in offered for name in self._allocated)
        self._is_unsure = self._is_unsure and bool(withdrawn)
        if not withdrawn:
            self._looked_for, self._allocated = withdrawn, frozenset()
        elif withdrawn != self._looked_for or is_pending:
            try:
                self._allocated = self._allocated_devices.names()
                self._looked_for, self._is_unsure = withdrawn, False
            except DriverError as error:
                self._is_unsure = True
                keys = fields(code=error.code, err=str(error))
                log.warning("cannot determine which devices claims were allocated", extra=keys)

    def _withdrawn(self, facts: Facts) -> frozenset[str]:
        """Return what is no longer offered on demand: single GPUs by address, or one word for all GPUs."""
        if not any(gpu.mig_profiles for gpu in facts.gpus):
            return frozenset()
        if not self._options.is_mig_dynamic:  # an earlier agent may have offered them
            return frozenset(["static"])
        is_counting = self._keeps.counters
        self._is_reported &= not is_counting
        foreign = (gpu.pci_address for gpu in facts.gpus if self._ownership.foreign_placements(gpu))
        return frozenset(foreign) if is_counting else frozenset(["uncounted", *foreign])

    # -- from devices to what is offered -------------------------------------------------------------------------------

    def taint(self, taints: DeviceTaints) -> bool:
        """Set the taints of all devices; return whether that changes what is offered."""
        with self._deciding:
            self._taints = taints
            return self.decide()

    def keep_unreleased(self, devices: Collection[str], shared: Collection[str] = ()) -> bool:
        """Taint these devices, and no others, as not released yet; return whether that changes what is offered.

        Shares and replicas of the devices in `shared` are not tainted.
        """
        kept = frozenset(devices), frozenset(shared)
        if (self._unreleased, self._unreleased_shares) == kept:
            return False
        self._unreleased, self._unreleased_shares = kept
        return self.decide()

    def _all_taints(self, inventory: Inventory) -> DeviceTaints:
        """Return the taints of all devices, with that of those which are not released yet and of their parts."""
        unreleased = self._unreleased | self._unreleased_shares
        if not unreleased:
            return self._taints
        taint = (DeviceTaint(f"{self._options.driver}/{UNRELEASED}", "", TaintEffect.NO_SCHEDULE),)
        kept = (
            name
            for name, device in inventory.by_name.items()
            for other in unreleased
            if (name == other or name.startswith(f"{other}-"))
            and not (device.share and device.shared_name == other and other in self._unreleased_shares)
        )
        return {**self._taints, **{name: (*self._taints.get(name, ()), *taint) for name in kept}}

    def decide(self) -> bool:
        """Decide again, and return whether the offer changed. Before everything is known, nothing is offered."""
        with self._deciding:
            inventory, other_drivers = self._inventory.current, self._other_drivers
            if inventory is NOT_READ_YET or not (other_drivers.is_known or other_drivers.is_serving):
                return False
            decided: Offering | None
            if other_drivers.has_same_name_driver:
                decided = None
            elif other_drivers.is_serving:
                decided = NOTHING
            elif self._is_unsure or (withheld := self._withheld(inventory)) is None:
                return False  # a device that may be allocated to a claim is never withdrawn
            else:
                other_drivers.record_other_names(inventory)
                offering = inventory.offering.narrowed(other_drivers.offer).without(withheld)
                decided = replace(offering, taints=self._all_taints(inventory))
            before, self._decided = self._decided, (decided,)
            return before != self._decided

    def current(self, keeps: KeptFields) -> Offering | None:
        """Return what to offer now to a server that keeps these fields; None to withdraw every slice.

        Raises: ApiError while it can't be determined which devices claims were allocated; then nothing is withdrawn.
        """
        self._keeps = keeps
        (decided,) = self._decided or (NOTHING,)
        if decided is None:
            return None
        try:
            if not keeps.counters and decided.counter_sets:
                self._allocated = self._allocated_devices.names()
                self._report_not_on_demand()
                with_allocated = self._inventory.holding(self._allocated).offering
                withheld = self._withheld(self._inventory.current) or ()
                offering = with_allocated.narrowed(self._other_drivers.offer).without(withheld)
                decided = replace(offering, taints=decided.taints)
            in_use = self._in_use() if not keeps.taints and decided.blocked() else ()
        except (NodeError, LedgerError) as error:
            raise ApiError("given-unknown", str(error), retry=Retry.NOW) from error
        return decided.for_server(keeps, in_use=in_use)

    def _withheld(self, inventory: Inventory) -> frozenset[str] | None:
        """Return the devices that have to pass a test first; None while that is not known."""
        held: frozenset[str] = frozenset()
        for gate in self._gates:
            more = gate.withheld(inventory)
            if more is None:
                return None
            held |= more
        return held

    def claim_ended(self) -> bool:
        """Return whether the offer may have changed because a claim was unprepared."""
        return not self._keeps.taints and bool(self._taints or self._unreleased or self._unreleased_shares)

    def used(self) -> frozenset[str]:
        """Return the devices that claims were allocated, under our names or another driver's. Raises: DriverError."""
        offering = self._inventory.current.offering
        every = (*offering.devices, *offering.plain)
        free = {device.name for device in self._other_drivers.offer(every)}
        allocated = self._allocated_devices.names(is_patient=False)
        return allocated.union(device.name for device in every if device.name not in free)

    def _in_use(self) -> frozenset[str]:
        """Return the devices that claims hold or were allocated. Raises: DriverError."""
        return self._owners.held() | self._allocated_devices.names()

    def _report_not_on_demand(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._events.send(
                NOT_ON_DEMAND,
                "GPUs are offered whole, and partitions only where they exist: the API server drops shared counters "
                "(feature gate DRAPartitionableDevices)",
            )

    def _log(self, facts: Facts, policy: MigPolicy) -> None:
        texts = {gpu.pci_address: offer_text(gpu, policy) for gpu in facts.gpus if gpu.mig_profiles}
        for address, how in texts.items():
            if self._logged.get(address) != how:
                log.info("how a GPU is offered", extra=fields(device=address, reason=how))
        self._logged = texts


def _always_offered(facts: Facts) -> frozenset[str]:
    """Return the names of the devices that are offered whether or not MIG is on demand."""
    whole = (gpu.whole_name for gpu in facts.gpus if not gpu.mig_enabled)
    parts = (_name(gpu, index) for gpu in facts.gpus for index in range(len(gpu.partitions)))
    return frozenset([*whole, *parts])


def _name(gpu: GpuFacts, index: int) -> str:
    partition = gpu.partitions[index]
    return partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)
