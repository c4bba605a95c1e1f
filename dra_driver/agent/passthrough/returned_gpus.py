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
from dataclasses import replace
from typing import Protocol

from dra_driver.agent.change_listener import ChangeListener
from dra_driver.agent.passthrough.remembered_gpus import RememberedGpus, ReturningGpu
from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.passthrough.identity import PciIdentity, read_identity
from dra_driver.hardware.port import Hardware, Resettable, Roots
from dra_driver.inventory.offering import Inventory
from dra_driver.model.errors import DriverError, HardwareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.plugin.ledger.recorded_steps import GpuReference
from dra_driver.telemetry.logs import fields

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
            self._kept.begin_again(one.pci_address for one in facts.gpus if not one.is_lost and not _is_away(one))
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
