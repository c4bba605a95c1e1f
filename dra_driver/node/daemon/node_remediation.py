"""Node remediation: the parts of the agent behind the interface that a remediation uses.

In: the parts of an agent. Out: a `RemediationNode`. The module is imported only if the option is on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import DriverError, NodeError, PrepareError, Retry
from dra_driver.base.machine import Deadline, boot_time
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import ComputeTested, Hardware, Resettable
from dra_driver.hardware.programs import run_program
from dra_driver.kube.leases import LeaseSlots
from dra_driver.node.daemon.node_health import NodeHealth
from dra_driver.node.daemon.opened_node import NodeDeviceHolders, OpenedNode, OtherDrivers
from dra_driver.node.health.cases import CommandRoot, RemediationMode, RemediationPolicy, SiteCommand
from dra_driver.node.health.faults import Fault
from dra_driver.node.health.recovery import FILE_NAME, DryRun, RebootRequest
from dra_driver.node.health.remediation import Remediation, claims_on
from dra_driver.node.health.validation import ValidationLevel, ValidationResult, ValidationSetting, ValidationVerdict
from dra_driver.node.health.validator import DeviceHolders, Validator
from dra_driver.node.ledger.locks import GpuHolds, ValidationLock
from dra_driver.node.neighbours.allocations import AllocatedDevices
from dra_driver.node.neighbours.gone_claims import described
from dra_driver.node.prepare.repair import Repair
from dra_driver.node.slices.publisher import Publisher
from dra_driver.node.slices.scanner import NodeInventory, Scanner

# Reset validation: shows that a GPU that was reset computes correctly, before it is offered.


class ResetValidation:
    """Tests GPUs after their remediation, at the level of the agent's validation; with `none` no test is made."""

    def __init__(
        self, hardware: Hardware, lock: ValidationLock, holders: DeviceHolders, setting: ValidationSetting
    ) -> None:
        level = setting.level
        self._level = level if level is None else max(level, ValidationLevel.COMPUTE)
        self._has_test = self._level is ValidationLevel.COMMAND or isinstance(hardware, ComputeTested)
        self._validator = Validator(hardware, lock, holders, command=setting.command)

    def run(self, gpu: GpuFacts) -> ValidationResult:
        """Test a GPU. One in MIG mode is not tested as a whole; its partitions are tested when they are created."""
        if self._level is None or not self._has_test or gpu.mig_enabled:
            return ValidationResult(ValidationVerdict.PASSED, ValidationLevel.READING)
        return self._validator.validate(gpu, None, self._level)


log = logging.getLogger(__name__)

LOCK_SECONDS = 5.0  # how long to wait for calls that work on the GPU's devices
RELEASE_SECONDS = 15.0  # how long a call of the library that has begun may take
CALL_SECONDS = 10.0
SLOT_PERIOD_S, SLOT_KEPT_S = 3600, 600.0  # when a slot expires that is not renewed, and how often it is renewed


HOST_ROOT = "1/root"  # below /proc: the root of the host's first process


@dataclass(frozen=True, kw_only=True)
class RemediatedParts:
    """The parts of an agent that its remediation asks."""

    inventory: NodeInventory
    health: NodeHealth
    scanner: Scanner
    publisher: Publisher
    repair: Repair
    allocated: AllocatedDevices
    other_drivers: OtherDrivers


class AgentRemediationNode:
    """One node, for its remediation. Its methods belong to the remediation's thread."""

    def __init__(
        self,
        node: OpenedNode,
        hardware: Resettable,
        parts: RemediatedParts,
        *,
        slots: LeaseSlots,
        reboot: RebootRequest,
        validation: ResetValidation,
    ) -> None:
        self._node, self._hardware, self._parts = node, hardware, parts
        self._slots, self._reboot, self._validation = slots, reboot, validation
        self._holds = GpuHolds(node.locks, node.ledger, parts.inventory)
        self._slot_at = float("-inf")
        self.is_slot_left = False

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read."""
        return self._parts.inventory.gpus

    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults."""
        return self._parts.health.faults

    def was_seen_since(self, at: float) -> bool:
        """Return whether the hardware was read after a time; if not, cause that to happen soon."""
        if self._parts.scanner.looked_at > at:
            return True
        self._parts.scanner.run_soon()
        return False

    def was_read_since(self, gpu: str, at: float) -> bool:
        """Return whether the GPU's health was read after a time."""
        return self._parts.health.was_read_since(gpu, at)

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        """Keep new claims from the subjects of these faults; None if it is not known which they are."""
        self._parts.health.hold(faults)

    def is_published(self) -> bool:
        """Return whether the API server has the slices without the devices that are held back now."""
        return self._parts.publisher.wait_published(0.0)

    def users(self, gpus: Collection[str]) -> tuple[str, ...]:
        """Return the claims that hold one of these GPUs, or a part of one."""
        return claims_on(gpus, self._node.ledger, self._parts.allocated, self._node.identity.boot_id)

    def clients(self, gpu: GpuFacts) -> tuple[str, ...]:
        """Return the processes, except this one, that have the GPU open."""
        own = os.getpid()
        pids = [pid for pid in self._hardware.open_by(gpu) if pid != own]
        return described(pids, Path(self._node.options.roots.proc))

    def send_event(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        """Send an Event about the node, and about the pods that use these GPUs."""
        self._parts.health.send_events(reason, text, gpus)

    def end_sharing(self, gpu: GpuFacts) -> None:
        """End the MPS daemons that no claim uses, including those of this GPU."""
        del gpu
        self._parts.repair.settle_sharing()

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
        if self._parts.scanner.is_paused:
            return "the signal that lets the agent use the library again (SIGUSR2)"
        known = [gpu for gpu in self._parts.inventory.gpus if gpu.pci_address in gpus]
        try:
            kept.enter_context(self._holds.hold(known, Deadline.after(LOCK_SECONDS)))
        except PrepareError as error:
            return f"a call to end: {error.message}"
        kept.callback(self._parts.scanner.reacquire)
        if not self._parts.scanner.release(RELEASE_SECONDS):
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
        self._parts.health.forget_errors(gpu)

    def validate(self, gpu: GpuFacts) -> ValidationResult:
        """Validate a GPU that no claim or process uses."""
        return self._validation.run(gpu)

    def acquire_slot(self) -> float:
        """Return 0 if this node may act now, or else the seconds until another node's slot may end."""
        wait = self._slots.acquire(self._node.options.node)
        self._slot_at = boot_time()
        return wait

    def renew_slot(self) -> None:
        """Keep the slot that this node has; it is renewed by one write every ten minutes."""
        if boot_time() - self._slot_at < SLOT_KEPT_S:
            return
        self._slot_at = boot_time()
        try:
            self._slots.renew(self._node.options.node)
        except DriverError as error:
            log.warning("lease for remediations not renewed", extra=fields(code=error.code, err=str(error)))

    def release_slot(self) -> None:
        """Release the slot before its time is over, or else remember that it is left."""
        try:
            self._slots.release(self._node.options.node)
            self.is_slot_left = False
        except DriverError as error:
            if not self.is_slot_left:
                log.warning("lease for remediations not released", extra=fields(code=error.code, err=str(error)))
            self.is_slot_left = True


# Composition: builds the remediation of a node's GPUs if the option is on and the hardware can be reset.

_CAPABILITIES = {18: "CAP_SYS_CHROOT", 21: "CAP_SYS_ADMIN"}  # linux/capability.h


def make_remediation(node: OpenedNode, parts: RemediatedParts) -> Remediation | DryRun | None:
    """Return the remediation of the node's GPUs; None for hardware that can't be reset.

    Raises: NodeError("node.unprivileged"); InputError for a policy that can't be used.
    """
    options, policy = node.options, read_policy(node.options.remediation_policy)
    if not isinstance(node.hardware, Resettable):
        log.warning("no remediation: this hardware can't be reset", extra=fields(vendor=node.hardware.vendor))
        return None
    is_on = options.remediation == RemediationMode.ON
    if is_on and node.hardware.needs_privilege:
        require_privilege()
    holders = NodeDeviceHolders(
        node.hardware,
        node.ledger,
        inventory=parts.inventory,
        allocated=parts.allocated,
        other_drivers=parts.other_drivers,
    )
    remediated = AgentRemediationNode(
        node,
        node.hardware,
        parts,
        slots=_lease_slots(node, policy),
        reboot=_reboot_request(node, policy),
        validation=ResetValidation(node.hardware, ValidationLock(options.data_dir), holders, options.validation),
    )
    if not is_on:
        return DryRun(remediated, policy)
    return Remediation(remediated, options.data_dir, policy, boot_id=node.identity.boot_id, wall=time.time)


def _lease_slots(node: OpenedNode, policy: RemediationPolicy) -> LeaseSlots:
    """Return the slots of the cluster, of which a node holds one while it treats a GPU."""
    names = [f"dra-driver-remediation-{number}" for number in range(policy.nodes)]
    return LeaseSlots(node.api, namespace=node.options.lease_namespace, names=names, period_s=SLOT_PERIOD_S)


def _reboot_request(node: OpenedNode, policy: RemediationPolicy) -> RebootRequest:
    """Return the file that asks for a reboot: a policy's path is the host's, the default path is the agent's."""
    boot_id, host = node.identity.boot_id, f"{node.options.roots.proc}/{HOST_ROOT}"
    if policy.reboot_file is None:
        return RebootRequest(node.options.data_dir / FILE_NAME, boot_id)
    return RebootRequest(policy.reboot_file, boot_id, host=host if os.access(host, os.X_OK) else "/")


def read_policy(path: Path | None) -> RemediationPolicy:
    """Return the policy of a file, or the default one. Raises: InputError."""
    if path is None:
        return RemediationPolicy()
    from dra_driver.node.health.policy_files import read_remediation_policy

    return read_remediation_policy(path)


def require_privilege(status: Path = Path("/proc/self/status")) -> None:
    """Refuse an agent without the privileges that a reset needs. Raises: NodeError("node.unprivileged")."""
    lines = [line for line in status.read_text("ascii", "replace").splitlines() if line.startswith("CapEff:")]
    held = int(lines[0].split()[1], 16) if lines else 0
    missing = [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        raise NodeError(
            "unprivileged",
            f"--remediation=on: this agent lacks {' and '.join(missing)}, so it can't reset a GPU",
            hint="run the agent privileged, or use --remediation=dry-run (docs/security.md)",
        )
