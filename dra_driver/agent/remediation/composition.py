"""Composition: builds the remediation of a node's GPUs if the option is on and the hardware can be reset.

In: the parts of an agent, the policy's file. Out: a remediation, or a dry run that only reports what it would do.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from dra_driver.agent.device_holders import NodeDeviceHolders
from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.agent.inventory.scanner import Scanner
from dra_driver.agent.node_health import NodeHealth
from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.other_drivers import OtherDrivers
from dra_driver.agent.remediation.node_remediation import HOST_ROOT, SLOT_PERIOD_S, AgentRemediationNode
from dra_driver.agent.remediation.reset_validation import ResetValidation
from dra_driver.controller.publisher import Publisher
from dra_driver.hardware.port import Resettable
from dra_driver.kube.leases import LeaseSlots
from dra_driver.model.errors import NodeError
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.plugin.repair.repair import Repair
from dra_driver.remediation.dry_run import DryRun
from dra_driver.remediation.policy import RemediationMode, RemediationPolicy
from dra_driver.remediation.reboot_request import FILE_NAME, RebootRequest
from dra_driver.remediation.remediation import Remediation
from dra_driver.telemetry.logs import fields
from dra_driver.validation.validation_lock import ValidationLock

log = logging.getLogger(__name__)

_CAPABILITIES = {18: "CAP_SYS_CHROOT", 21: "CAP_SYS_ADMIN"}  # linux/capability.h


def make_remediation(
    node: OpenedNode,
    inventory: NodeInventory,
    health: NodeHealth,
    *,
    scanner: Scanner,
    publisher: Publisher,
    repair: Repair,
    allocated: AllocatedDevices,
    other_drivers: OtherDrivers,
) -> Remediation | DryRun | None:
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
        node.hardware, node.ledger, inventory=inventory, allocated=allocated, other_drivers=other_drivers
    )
    remediated = AgentRemediationNode(
        node,
        node.hardware,
        inventory=inventory,
        health=health,
        scanner=scanner,
        publisher=publisher,
        repair=repair,
        allocated=allocated,
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
    from dra_driver.remediation.policy_file import read_remediation_policy  # noqa: PLC0415 - yaml, only for this

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
