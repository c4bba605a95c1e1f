"""Returned GPUs: a GPU that a virtual machine had is compared and tested before another claim gets it.

In: the GPU that is given back, and the facts of the next scans of the hardware. Out: the devices that are held back. A
GPU with another identity (its UUID, its PCI numbers, its serial number) or firmware than before stays held back in this
boot, and is a problem. If devices are tested before they are offered, the GPU has to pass a new test.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, HardwareError, Retry
from dra_driver.base.flags import registered_or_default
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware import pci
from dra_driver.hardware.driver_binding import BusAccess, ChildWriter, OwnBus
from dra_driver.hardware.facts import Facts, GpuFacts, PassthroughFacts, Problem
from dra_driver.hardware.pci import is_vfio
from dra_driver.hardware.port import Hardware, Resettable, Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.hardware.vfio import (
    PciIdentity,
    has_iommufd,
    is_of,
    needed_driver,
    read_addressable_bytes,
    read_function,
    read_identity,
    read_passthrough_group,
    read_physical,
    require_passable,
    require_safe_iommu,
)
from dra_driver.node.daemon.opened_node import OpenedNode
from dra_driver.node.daemon.passthrough_memory import RememberedGpus, ReturningGpu
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.devices.offering import Inventory, PassthroughRule, PassthroughRules
from dra_driver.node.ledger.recorded_steps import GpuReference
from dra_driver.node.slices.scanner import ChangeListener, Scanner

log = logging.getLogger(__name__)

CHANGED = "hardware.identity-changed"
CALL_SECONDS, POLL_SECONDS = 5.0, 0.2


class GpuTests(Protocol):
    """The tests that devices pass before they are offered."""

    def retest(self, uuid: str) -> None:
        """Test a GPU again, and hold it back until then."""


class ReturnedGpus(AgentPart):
    """The GPUs of one node that are being checked. Any thread may call any method."""

    def __init__(
        self, kept: RememberedGpus, hardware: Hardware, roots: Roots, listener: ChangeListener, tests: GpuTests | None
    ) -> None:
        self._kept, self._hardware, self._roots, self._listener, self._tests = kept, hardware, roots, listener, tests
        self._changed = threading.Condition()
        self._has_role = True
        self._failed: dict[str, str] = {}

    def start(self) -> None:
        """Check the GPUs that come back: this instance got the node's role."""
        self._has_role = True

    def stop(self) -> None:
        """Leave the checks to the instance with the role, which tests the devices."""
        self._has_role = False

    def fingerprint(self) -> Hashable:
        """Return a value that changes when GPUs have to be checked."""
        return self._has_role, self._kept.is_lost, frozenset(self._kept.returning)

    @property
    def waits_for_claims(self) -> bool:
        """Return whether a GPU waits for its check."""
        return bool(self._kept.returning)

    def begin(self, gpu: GpuReference, identity: PciIdentity, *, needs_persistence: bool) -> None:
        """Hold a GPU back from now on, and switch its persistence mode on again once it is back.

        `identity` is that of its function before the virtual machine had it.
        """
        known = self._kept.facts_of(gpu.pci_address)
        vbios = (known.vbios_version if known else None) or ""
        self._kept.begin_return(gpu.pci_address, ReturningGpu(gpu.uuid, vbios, needs_persistence, identity))
        self._listener.validation_changed()

    def await_checked(self, address: str, deadline: Deadline) -> None:
        """Wait until a GPU is not held back. Raises: HardwareError("hardware.not-checked", LATER)."""
        end = time.monotonic() + deadline.remaining()
        with self._changed:
            while self._is_unchecked(address) and address not in self._failed and time.monotonic() < end:
                self._changed.wait(min(POLL_SECONDS, end - time.monotonic()))  # another agent may check it
        if self._is_unchecked(address):
            why = self._failed.get(address) or "its driver has not reported it yet"
            text = f"GPU {address} came back from a virtual machine and has not passed its check: {why}"
            raise HardwareError("not-checked", text, retry=Retry.LATER)

    def _is_unchecked(self, address: str) -> bool:
        return address in self._kept.returning or self._kept.is_lost or not self._kept.is_known

    def withheld(self, inventory: Inventory) -> frozenset[str] | None:
        """Return the names of the devices of GPUs that are being checked; None while that is not known."""
        returning = self._kept.returning
        if self._kept.is_lost or not self._kept.is_known:
            return None
        every = inventory.offering.every() if returning else ()
        return frozenset(device.name for device in every if device.gpu.pci_address in returning)

    def checked(self, facts: Facts) -> Facts:
        """Check the GPUs that are back, and return the facts with the problems found."""
        returning = self._kept.returning
        if self._has_role and self._kept.is_lost:
            self._kept.begin_again(gpu.pci_address for gpu in facts.gpus if not gpu.is_lost and not _is_away(gpu))
            returning = self._kept.returning
        if not returning or not self._has_role:
            return facts
        problems = tuple(self._check(facts.gpus, returning.items()))
        return replace(facts, problems=(*facts.problems, *problems))

    def _check(self, gpus: Iterable[GpuFacts], returning: Iterable[tuple[str, ReturningGpu]]) -> Iterator[Problem]:
        back = {one.pci_address: one for one in gpus if not one.is_lost and not _is_away(one)}
        for address, before in returning:
            gpu = back.get(address)
            if gpu is None:
                continue
            now = read_identity(self._roots, address)
            if fault := _difference(gpu, before) or now.difference_from(before.identity):
                self._failed[address] = fault
                yield Problem(CHANGED, address, f"held back after a virtual machine had it: {fault}")
                continue
            self._release(gpu, before)

    def _release(self, gpu: GpuFacts, before: ReturningGpu) -> None:
        if before.needs_persistence:
            self._restore_persistence(gpu)
        if self._tests is not None:
            self._tests.retest(gpu.uuid)
        self._failed.pop(gpu.pci_address, None)
        with self._changed:
            self._kept.end_return(gpu.pci_address)
            self._changed.notify_all()
        log.info("GPU checked after a virtual machine had it", extra=fields(device=gpu.pci_address))

    def _restore_persistence(self, gpu: GpuFacts) -> None:
        """Switch persistence mode on again. A GPU works without it, so a failure is only logged."""
        if not isinstance(self._hardware, Resettable):
            return
        try:
            self._hardware.set_persistence(gpu, True, CALL_SECONDS)
        except DriverError as error:
            log.warning("persistence mode not restored", extra=fields(device=gpu.pci_address, err=str(error)))


def _is_away(gpu: GpuFacts) -> bool:
    return gpu.passthrough is not None and gpu.passthrough.is_away


def _difference(gpu: GpuFacts, before: ReturningGpu) -> str:
    if before.uuid and gpu.uuid != before.uuid:
        return f"its UUID is {gpu.uuid}, but was {before.uuid}"
    if before.vbios_version and gpu.vbios_version and gpu.vbios_version != before.vbios_version:
        return f"its VBIOS is {gpu.vbios_version}, but was {before.vbios_version}"
    return ""


# Passthrough GPUs: facts, completed by the GPUs that virtual machines may have.

_NOT_DRIVEN = "hardware.gpu-not-driven"


class PassthroughGpus:
    """The GPUs of one node that an administrator named for virtual machines."""

    def __init__(self, rules: PassthroughRules, roots: Roots, kept: RememberedGpus) -> None:
        self._rules, self._roots, self._kept = rules, roots, kept

    def fingerprint(self) -> Hashable:
        """Return a value that changes when another driver is bound to one of the GPUs."""
        return tuple((address, self._driver_of(address)) for address in sorted(self._candidates()))

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the GPUs that virtual machines may have."""
        here = {gpu.pci_address: gpu for gpu in facts.gpus}
        problems: list[Problem] = []
        gpus = [self._named(gpu, problems) for gpu in facts.gpus]
        self._kept.learn(gpu for gpu in gpus if gpu.passthrough is not None and not gpu.is_lost)
        passed = tuple(self._unreported(facts, frozenset(here), problems))
        away = {gpu.pci_address for gpu in passed}
        kept = [problem for problem in facts.problems if problem.code != _NOT_DRIVEN or problem.subject not in away]
        waiting = facts.waiting_for
        if passed and not here and not any(one.code == _NOT_DRIVEN for one in kept):
            waiting = ""  # the driver has no GPU left, as intended
            kept = [one for one in kept if one.subject != "node"]
        in_order = tuple(sorted((*gpus, *passed), key=lambda gpu: (gpu.pci_address, gpu.part)))
        return replace(facts, gpus=in_order, problems=(*kept, *problems), waiting_for=waiting)

    def _named(self, gpu: GpuFacts, problems: list[Problem]) -> GpuFacts:
        if gpu.part and not gpu.parts:  # a partition has no function of its own; only the whole GPU has one
            return gpu
        is_virtual = read_physical(self._roots, gpu.pci_address) != ""
        rule = self._rules.rule_of(gpu.pci_address, gpu.uuid, is_virtual=is_virtual)
        found = self._passthrough(gpu.pci_address, gpu.vendor, rule, problems) if rule is not None else None
        return gpu if found is None else replace(gpu, passthrough=found)

    def _unreported(self, facts: Facts, here: frozenset[str], problems: list[Problem]) -> Iterator[GpuFacts]:
        """Yield the GPUs that the vendor does not report: GPUs with a VFIO driver, and virtual functions."""
        registry = registered_or_default(facts.vendor)
        for address in sorted(self._candidates() - here):
            known = self._kept.facts_of(address)
            if known is None and not is_of(self._roots, address, registry):  # another vendor's driver offers it
                continue
            is_virtual = read_physical(self._roots, address) != ""
            rule = self._rules.rule_of(address, known.uuid if known else "", is_virtual=is_virtual)
            is_away = is_vfio(self._driver_of(address))
            if rule is None and known is not None and is_away:  # it stays listed until its claim ends
                rule = PassthroughRule((), (address,))
            if rule is None or not (is_away or is_virtual):
                continue
            found = self._passthrough(address, registry.name, rule, problems)
            if found is not None:
                gpu = known or self._of_bus(registry.name, address)
                is_only_passed = found.is_only_passed or known is None
                yield replace(
                    gpu, passthrough=replace(found, is_away=is_away, is_only_passed=is_only_passed), is_lost=False
                )

    def _passthrough(
        self, address: str, vendor: str, rule: PassthroughRule, problems: list[Problem]
    ) -> PassthroughFacts | None:
        try:
            require_safe_iommu(self._roots)
            group = read_passthrough_group(self._roots, address)
            needed_driver(self._roots, address, rule.driver)
            require_passable(self._roots, address)
        except DriverError as error:
            text = f"not offered to virtual machines: {error}"
            problems.append(Problem(error.code, address, text))
            return None
        declared = load_vendor(registered_or_default(vendor).name).passthrough
        return PassthroughFacts(
            addressable_bytes=read_addressable_bytes(self._roots, address),
            has_iommufd=has_iommufd(self._roots),
            is_only_passed=rule.is_only_passed,
            driver=rule.driver,
            group=group.number,
            physical=read_physical(self._roots, address),
            has_api_device=declared is not None and declared.has_api_device,
        )

    def _of_bus(self, vendor: str, address: str) -> GpuFacts:
        """Return the facts of a GPU as far as the bus alone shows them."""
        declared = load_vendor(vendor)
        gpu = declared.gpu(
            uuid="",
            pci_address=address,
            minor=-1,
            memory_bytes=None,
            numa_node=pci.read_numa_node(self._roots, address),
            pcie_root=pci.read_pcie_root(self._roots, address),
            pci_id=pci.read_pci_id(self._roots, address),
        )
        return declared.passthrough.with_pci_facts(gpu, self._roots) if declared.passthrough else gpu

    def _candidates(self) -> frozenset[str]:
        return self._rules.addresses | self._kept.addresses

    def _driver_of(self, address: str) -> str:
        found = read_function(self._roots, address)
        return found.driver if found is not None else ""


# The parts with which an agent hands GPUs to virtual machines; they are created only if a file names such GPUs.


@dataclass(frozen=True, slots=True)
class NodePassthrough:
    """The parts: the bus, the GPUs for virtual machines, and the GPUs that come back from them."""

    access: BusAccess
    named: PassthroughGpus
    returned: ReturnedGpus


def make_passthrough(
    node: OpenedNode, path: Path | None, listener: ChangeListener, tests: GpuTests | None
) -> NodePassthrough:
    """Return the parts; without a file they only take back the GPUs that virtual machines still have.

    Raises: InputError for a file that can't be used.
    """
    rules = _rules(path).of_node(node.options.node) if path is not None else PassthroughRules()
    access = access_of(node)
    kept = RememberedGpus(node.options.data_dir, node.identity.boot_id)
    returned = ReturnedGpus(kept, node.hardware, access.roots, listener, tests)
    returned.stop()  # until this instance has the role
    return NodePassthrough(access, PassthroughGpus(rules, access.roots, kept), returned)


def _rules(path: Path) -> PassthroughRules:
    from dra_driver.node.devices.rules_files import read_passthrough_rules

    return read_passthrough_rules(path)


def access_of(node: OpenedNode) -> BusAccess:
    """Return the node's PCI bus: this machine's own, or the one that simulated hardware has."""
    if isinstance(node.hardware, OwnBus):
        return node.hardware.bus_access()
    return BusAccess(node.options.roots, ChildWriter())


# Scanner pause: the scanner releases the vendor's library for a moment, while a GPU is moved to another driver.

RELEASE_SECONDS = 15.0  # how long a call of the library that has begun may take


class ScannerPause:
    """Makes the scanner of one node release the vendor's library."""

    def __init__(self, scanner: Scanner, hardware: Hardware) -> None:
        self._scanner, self._hardware = scanner, hardware

    @contextmanager
    def released(self, deadline: Deadline) -> Iterator[None]:
        """Keep this process from having a GPU open. Raises: HardwareError("hardware.library-busy", LATER)."""
        if not isinstance(self._hardware, Resettable):  # hardware without a library has nothing open
            yield
            return
        try:
            if not self._scanner.release(min(RELEASE_SECONDS, deadline.remaining())):
                text = "a call of the driver's library does not return, so this agent still has every GPU open"
                raise HardwareError("library-busy", text, retry=Retry.LATER)
            yield
        finally:
            self._scanner.reacquire()
