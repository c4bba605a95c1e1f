"""Optional parts: the parts of an agent that exist only if an option asks for them and the vendor has the ability.

In: the opened node and the parts that every agent has. Out: the part, or None. A part that does not exist is not
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_driver.base.names import gpu_of_vfio_device
from dra_driver.hardware.driver_binding import BusAccess, ChildWriter
from dra_driver.hardware.port import HealthReporter, MemoryLimitShowing, Metered
from dra_driver.node.daemon.claim_status import DeviceUsers
from dra_driver.node.daemon.opened_node import OpenedNode, OtherDrivers
from dra_driver.node.daemon.passthrough_memory import may_be_away
from dra_driver.node.neighbours.allocations import AllocatedDevices
from dra_driver.node.prepare.repair import PeriodicTask, Repair
from dra_driver.node.prepare.steps.memory_limiter import MemoryLimiter
from dra_driver.node.prepare.steps.passthrough import PassthroughServices
from dra_driver.node.slices.publisher import Publisher
from dra_driver.node.slices.scanner import ChangeListener, NodeInventory, Scanner

if TYPE_CHECKING:
    from dra_driver.kube.leases import LeaseSlots
    from dra_driver.node.daemon.claim_status import ClaimStatus
    from dra_driver.node.daemon.fault_reports import HealthCondition
    from dra_driver.node.daemon.node_health import NodeHealth
    from dra_driver.node.daemon.node_labels import LimitWatch
    from dra_driver.node.daemon.node_validation import ValidationGate
    from dra_driver.node.daemon.passthrough import NodePassthrough
    from dra_driver.node.health.faults import HealthPolicy
    from dra_driver.node.health.recovery import DryRun
    from dra_driver.node.health.remediation import Remediation
    from dra_driver.node.metering.claim_tally import NodeMeter


def make_gate(
    node: OpenedNode,
    listener: ChangeListener,
    inventory: NodeInventory,
    allocated: AllocatedDevices,
    other_drivers: OtherDrivers,
) -> ValidationGate | None:
    """Return the gate that holds devices back until they are tested; None without tests or without health."""
    setting, options = node.options.validation, node.options
    if setting.level is None or not options.is_health_watched or not isinstance(node.hardware, HealthReporter):
        return None
    from dra_driver.node.daemon import opened_node

    return opened_node.make_gate(
        node, setting, listener, inventory=inventory, allocated=allocated, other_drivers=other_drivers
    )


def make_passthrough(node: OpenedNode, listener: ChangeListener, gate: ValidationGate | None) -> NodePassthrough | None:
    """Return the part that passes GPUs to virtual machines; None if no file names any and no machine may have one.

    Raises: InputError, LedgerError.
    """
    is_away = may_be_away(node.options.data_dir) or any(map(gpu_of_vfio_device, node.ledger.held()))
    if node.options.passthrough is None and not is_away:
        return None
    from dra_driver.node.daemon import passthrough as node_passthrough

    return node_passthrough.make_passthrough(node, node.options.passthrough, listener, gate)


def passthrough_services(
    node: OpenedNode, passthrough: NodePassthrough | None, scanner: Scanner
) -> PassthroughServices:
    """Return the services that hand GPUs to virtual machines and take them back."""
    if passthrough is None:  # there is no GPU to pass on or to take back
        return PassthroughServices(BusAccess(node.options.roots, ChildWriter()))
    from dra_driver.node.daemon.passthrough import ScannerPause

    return PassthroughServices(passthrough.access, ScannerPause(scanner, node.hardware), passthrough.returned)


def make_health(
    node: OpenedNode,
    inventory: NodeInventory,
    listener: ChangeListener,
    users: DeviceUsers,
    gate: ValidationGate | None,
) -> NodeHealth | None:
    """Return the part that watches the health of the devices; None if that is off or the vendor does not report it.

    Raises: InputError.
    """
    options = node.options
    if not options.is_health_watched or not isinstance(node.hardware, HealthReporter):
        return None
    from dra_driver.node.daemon.node_health import NodeHealth, read_policy

    policy = read_policy(options.health_policy)
    return NodeHealth(
        node.hardware,
        node,
        policy=policy,
        slots=_eviction_slots(node, policy) if policy.evicts else None,
        inventory=inventory,
        listener=listener,
        users=users,
        gate=gate,
    )


def _eviction_slots(node: OpenedNode, policy: HealthPolicy) -> LeaseSlots:
    from dra_driver.kube.leases import LeaseSlots

    limit = policy.evictions
    names = [f"dra-driver-eviction-{number}" for number in range(limit.devices)]
    return LeaseSlots(node.api, namespace=node.options.lease_namespace, names=names, period_s=limit.period_s)


def make_meter(node: OpenedNode, inventory: NodeInventory) -> NodeMeter | None:
    """Return the node's meter, or None. Raises: InputError for a counters file that can't be used."""
    if node.options.telemetry is None or not isinstance(node.hardware, Metered):
        return None
    from dra_driver.node.daemon import opened_node

    return opened_node.make_meter(node, node.hardware, node.options.telemetry, inventory)


def make_claim_status(node: OpenedNode, inventory: NodeInventory, *, is_health_watched: bool) -> ClaimStatus | None:
    """Return the part that writes the status of claims; None if that is off."""
    if not node.options.writes_claim_status:
        return None
    from dra_driver.node.daemon.claim_status import ClaimStatus

    return ClaimStatus(
        node.api,
        node.identity,
        ledger=node.ledger,
        store=node.store,
        inventory=inventory,
        is_health_watched=is_health_watched,
    )


def make_health_condition(
    node: OpenedNode, health: NodeHealth | None, remediation: Remediation | DryRun | None
) -> HealthCondition | None:
    """Return the part that writes the Node's condition; None if that is off or health is not watched."""
    if not node.options.writes_node_condition or health is None:
        return None
    from dra_driver.node.daemon.fault_reports import HealthCondition

    def is_reboot_asked() -> bool:
        return remediation is not None and remediation.is_reboot_asked()

    return HealthCondition(
        node.api,
        health,
        node=node.options.node,
        driver=node.options.driver,
        boot_id=node.identity.boot_id,
        is_reboot_asked=is_reboot_asked,
    )


def make_limit_watch(node: OpenedNode, limiter: MemoryLimiter) -> LimitWatch | None:
    """Return the watch over memory limits; None if the hardware can't show them or no memory is limited."""
    if not isinstance(node.hardware, MemoryLimitShowing):
        return None
    if node.options.sharing_config is None and not limiter.has_any():
        return None
    from dra_driver.node.daemon.node_labels import LimitWatch

    return LimitWatch(limiter, node.api, node=node.options.node, driver=node.options.driver)


def make_labels(node: OpenedNode, inventory: NodeInventory) -> list[PeriodicTask]:
    """Return the task that publishes the node's labels, as a list; an empty one if that is off."""
    options = node.options
    if options.feature_file is None and not options.has_feature_object:
        return []
    from dra_driver.node.daemon.node_labels import (
        FeatureFile,
        FeatureObject,
        NodeLabels,
    )

    labels = NodeLabels(inventory, node.hardware.vendor, options.roots)
    if options.feature_file is not None:
        return [FeatureFile(options.feature_file, labels)]
    return [
        FeatureObject(node.api, labels, node=options.node, driver=options.driver, namespace=options.lease_namespace)
    ]


def make_remediation(
    node: OpenedNode,
    inventory: NodeInventory,
    health: NodeHealth | None,
    *,
    scanner: Scanner,
    publisher: Publisher,
    repair: Repair,
    allocated: AllocatedDevices,
    other_drivers: OtherDrivers,
) -> Remediation | DryRun | None:
    """Return the part that treats faulty GPUs; None if that is off or health is not watched. Raises: DriverError."""
    if node.options.remediation == "off" or health is None:
        return None
    from dra_driver.node.daemon import node_remediation

    parts = node_remediation.RemediatedParts(
        inventory=inventory,
        health=health,
        scanner=scanner,
        publisher=publisher,
        repair=repair,
        allocated=allocated,
        other_drivers=other_drivers,
    )
    return node_remediation.make_remediation(node, parts)
