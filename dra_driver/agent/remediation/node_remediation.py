"""Node remediation: the parts of the agent behind the interface that a remediation uses.

In: the parts of an agent. Out: a `RemediationNode`. The module is imported only if the option is on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.agent.inventory.scanner import Scanner
from dra_driver.agent.node_health import NodeHealth
from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.remediation.reset_validation import ResetValidation
from dra_driver.controller.publisher import Publisher
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Resettable
from dra_driver.hardware.programs import run_program
from dra_driver.health.fault import Fault
from dra_driver.kube.leases import LeaseSlots
from dra_driver.model.errors import DriverError, NodeError, PrepareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.gpu_holds import GpuHolds
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.plugin.node_claims.host_processes import described
from dra_driver.plugin.repair.repair import Repair
from dra_driver.remediation.holders import claims_on
from dra_driver.remediation.policy import CommandRoot, SiteCommand
from dra_driver.remediation.reboot_request import RebootRequest
from dra_driver.telemetry.logs import fields
from dra_driver.validation.result import ValidationResult

log = logging.getLogger(__name__)

LOCK_SECONDS = 5.0  # how long to wait for calls that work on the GPU's devices
RELEASE_SECONDS = 15.0  # how long a call of the library that has begun may take
CALL_SECONDS = 10.0
SLOT_PERIOD_S, SLOT_KEPT_S = 3600, 600.0  # when a slot expires that is not renewed, and how often it is renewed


HOST_ROOT = "1/root"  # below /proc: the root of the host's first process


class AgentRemediationNode:
    """One node, for its remediation. Its methods belong to the remediation's thread."""

    def __init__(
        self,
        node: OpenedNode,
        hardware: Resettable,
        *,
        inventory: NodeInventory,
        health: NodeHealth,
        scanner: Scanner,
        publisher: Publisher,
        repair: Repair,
        allocated: AllocatedDevices,
        slots: LeaseSlots,
        reboot: RebootRequest,
        validation: ResetValidation,
    ) -> None:
        self._node, self._hardware, self._inventory, self._health = node, hardware, inventory, health
        self._scanner, self._publisher, self._repair, self._allocated = scanner, publisher, repair, allocated
        self._slots = slots
        self._validation = validation
        self._reboot = reboot
        self._holds = GpuHolds(node.locks, node.ledger, inventory)
        self._slot_at = float("-inf")

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read."""
        return self._inventory.gpus

    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults."""
        return self._health.faults

    def was_seen_since(self, at: float) -> bool:
        """Return whether the hardware was read after a time; if not, cause that to happen soon."""
        if self._scanner.looked_at > at:
            return True
        self._scanner.run_soon()
        return False

    def was_read_since(self, gpu: str, at: float) -> bool:
        """Return whether the GPU's health was read after a time."""
        return self._health.was_read_since(gpu, at)

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        """Keep new claims from the subjects of these faults; None if it is not known which they are."""
        self._health.hold(faults)

    def is_published(self) -> bool:
        """Return whether the API server has the slices without the devices that are held back now."""
        return self._publisher.wait_published(0.0)

    def users(self, gpus: Collection[str]) -> tuple[str, ...]:
        """Return the claims that hold one of these GPUs, or a part of one."""
        return claims_on(gpus, self._node.ledger, self._allocated, self._node.identity.boot_id)

    def clients(self, gpu: GpuFacts) -> tuple[str, ...]:
        """Return the processes, except this one, that have the GPU open."""
        own = os.getpid()
        pids = [pid for pid in self._hardware.open_by(gpu) if pid != own]
        return described(pids, Path(self._node.options.roots.proc))

    def send_event(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        """Send an Event about the node, and about the pods that use these GPUs."""
        self._health.send_events(reason, text, gpus)

    def end_sharing(self, gpu: GpuFacts) -> None:
        """End the MPS daemons that no claim uses, including those of this GPU."""
        del gpu
        self._repair.settle_sharing()

    def persistence(self, gpu: GpuFacts) -> bool | None:
        """Return whether the GPU is in persistence mode; None if it does not answer."""
        try:
            return self._hardware.persistence(gpu, CALL_SECONDS)
        except DriverError as error:
            log.info("persistence mode is not known", extra=fields(device=gpu.pci_address, err=str(error)))
            return None

    def set_persistence(self, gpu: GpuFacts, *, enabled: bool) -> None:
        """Switch persistence mode."""
        self._hardware.set_persistence(gpu, enabled, CALL_SECONDS)

    @contextmanager
    def closed(self, gpus: Collection[str]) -> Iterator[str]:
        """Keep Prepare from these GPUs and release the vendor's library; yield why that is not possible, or ""."""
        with ExitStack() as kept:
            yield self._hindrance(gpus, kept)

    def _hindrance(self, gpus: Collection[str], kept: ExitStack) -> str:
        """Take the locks and release the library until `kept` ends; return why that is not possible, or ""."""
        if self._scanner.is_paused:
            return "the signal that lets the agent use the library again (SIGUSR2)"
        known = [gpu for gpu in self._inventory.gpus if gpu.pci_address in gpus]
        try:
            kept.enter_context(self._holds.hold(known, Deadline.after(LOCK_SECONDS)))
        except PrepareError as error:
            return f"a call to end: {error.message}"
        kept.callback(self._scanner.reacquire)
        if not self._scanner.release(RELEASE_SECONDS):
            return "a call of the driver's library to return"
        return ""

    def reset(self, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
        """Reset these GPUs together."""
        self._hardware.reset(gpus, timeout_s)

    def run(self, command: SiteCommand, gpu: GpuFacts) -> None:
        """Run the administrator's program. Raises: NodeError("node.command")."""
        roots = self._node.options.roots
        root = roots.driver_mount if command.root is CommandRoot.DRIVER else "/"
        argv = command.argv_for(gpu.uuid, gpu.pci_address)
        try:
            end = run_program(argv, command.timeout_s, root=root)
        except OSError as error:
            raise NodeError("command", f"{argv[0]} can't be run: {error.strerror}", retry=Retry.LATER) from error
        if end.status is None:
            raise NodeError("command", f"{argv[0]} did not end within {command.timeout_s:.0f} s", retry=Retry.LATER)
        if end.status:
            text = f"{argv[0]} printed: {end.output or 'nothing'} (exit status {end.status})"
            raise NodeError("command", text, retry=Retry.LATER)

    def ask_reboot(self, text: str) -> None:
        """Request a reboot of this machine; the request ends with this boot."""
        self._reboot.ask(text)

    def withdraw_reboot(self) -> None:
        """Take back the request."""
        self._reboot.withdraw()

    def is_reboot_asked(self) -> bool:
        """Return whether a reboot of this machine is asked for in this boot."""
        return self._reboot.is_asked

    def forget_errors(self, gpu: str) -> None:
        """Forget the errors that were reported of a GPU before it was remediated."""
        self._health.forget_errors(gpu)

    def validate(self, gpu: GpuFacts) -> ValidationResult:
        """Validate a GPU that no claim or process uses."""
        return self._validation.run(gpu)

    def acquire_slot(self) -> float:
        """Return 0 if this node may act now, or else the seconds until another node's slot may end."""
        wait = self._slots.acquire(self._node.options.node)
        self._slot_at = time.monotonic()
        return wait

    def renew_slot(self) -> None:
        """Keep the slot that this node has; it is renewed by one write every ten minutes."""
        if time.monotonic() - self._slot_at < SLOT_KEPT_S:
            return
        self._slot_at = time.monotonic()
        try:
            self._slots.renew(self._node.options.node)
        except DriverError as error:
            log.warning("lease for remediations not renewed", extra=fields(code=error.code, err=str(error)))

    def release_slot(self) -> None:
        """Release the slot before its time is over."""
        try:
            self._slots.release(self._node.options.node)
        except DriverError as error:
            log.warning("lease for remediations not released", extra=fields(code=error.code, err=str(error)))
