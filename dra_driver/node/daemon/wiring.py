"""Wiring: creates and connects the parts of a node's agent.

    hardware ──► scanner ──► inventory ──► offer ──► publisher ──► ResourceSlices
                                 └──► preparer ◄── plugin server ◄── kubelet

A part knows the parts upstream of it, and asks them. Changes reach the parts downstream through a `listener`, which is
the agent itself: no part holds a reference to anything downstream, and none is given a function of another part.
Some parts exist only if an option asks for them and the vendor has the ability; others are not imported.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dra_driver.base.names import gpu_of_vfio_device
from dra_driver.hardware.driver_binding import BusAccess, ChildWriter
from dra_driver.hardware.port import ChannelOffering, HealthReporter, MemoryLimitShowing, Metered
from dra_driver.kube.paths import ClaimApi
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.daemon.claim_status import DeviceUsers
from dra_driver.node.daemon.fault_reports import UnreleasedDevices
from dra_driver.node.daemon.node_labels import FactsChange, StagedFacts, channel, lost_gpus, passed_gpus
from dra_driver.node.daemon.offer import CurrentSharingRules, NodeOffer, OfferGate
from dra_driver.node.daemon.opened_node import OpenedNode, OtherDrivers
from dra_driver.node.daemon.passthrough_memory import may_be_away
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.kubelet.registration import started
from dra_driver.node.kubelet.server import PluginServer
from dra_driver.node.kubelet.sockets import NodeRole, folder_id
from dra_driver.node.ledger.locks import ValidationLock
from dra_driver.node.mps.client import MpsClient, socket_path
from dra_driver.node.neighbours.allocations import AllocatedDevices
from dra_driver.node.neighbours.gone_claims import GoneClaims
from dra_driver.node.prepare.composition import ClaimContext, ClaimWork, NodeFolders, compose
from dra_driver.node.prepare.repair import PeriodicTask, Reaper, Repair
from dra_driver.node.prepare.steps.declared_mig import DeclaredMig, GeometrySource
from dra_driver.node.prepare.steps.memory_limiter import MemoryLimiter
from dra_driver.node.prepare.steps.passthrough import PassthroughServices
from dra_driver.node.prepare.steps.standing_partitions import AbandonedPartitions
from dra_driver.node.slices.publisher import Publisher
from dra_driver.node.slices.scanner import ChangeListener, NodeInventory, OwnChanges, Scanner
from dra_driver.node.slices.writer import AgentMark

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


# Parts: the objects that live as long as the agent of one driver; `wiring` creates and connects them.


class RolePart(Protocol):
    """A part that works only while this instance has the node's role."""

    def start(self) -> None:
        """Begin to work; may be called again after `stop`."""

    def stop(self) -> None:
        """Stop working."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that live as long as the agent.

    Those of `of_role` work only with the node's role, in the order in which they have to start. Those of them that are
    an `AgentPart` are also told of changes, in the same order.
    """

    inventory: NodeInventory
    other_drivers: OtherDrivers
    sharing: CurrentSharingRules
    offer: NodeOffer
    scanner: Scanner
    publisher: Publisher
    repair: Repair
    server: PluginServer
    declared_mig: DeclaredMig
    abandoned: AbandonedPartitions
    reaper: Reaper
    role: NodeRole
    unreleased: UnreleasedDevices
    of_role: tuple[RolePart, ...]

    def __iter__(self) -> Iterator[AgentPart]:
        """Yield the parts that are told of changes."""
        return (part for part in self.of_role if isinstance(part, AgentPart))


def join_parts(node: OpenedNode, listener: ChangeListener) -> Parts:
    """Create the parts, and give each the parts upstream of it. Raises: InputError for invalid sharing rules."""
    options, inventory = node.options, NodeInventory()
    allocated = AllocatedDevices(node.claims, node.identity)
    sharing = CurrentSharingRules(
        options.sharing_config, options.node, api=node.api, allocated=allocated, tenants=options.mps_tenants
    )
    other_drivers = OtherDrivers(node, listener)
    gate = make_gate(node, listener, inventory, allocated, other_drivers)
    passthrough = make_passthrough(node, listener, gate)
    users = DeviceUsers(node.api, node.identity, node.ledger)
    health = make_health(node, inventory, listener, users, gate)
    returned = passthrough.returned if passthrough is not None else None
    gates: list[OfferGate] = [part for part in (gate, returned, health) if part is not None]
    offer = NodeOffer(node, inventory, allocated=allocated, sharing=sharing, other_drivers=other_drivers, gates=gates)
    own_changes = OwnChanges()
    stages = _stages(node, offer, health, passthrough)
    scanner = Scanner(node.hardware, inventory, stages, own_changes=own_changes, listener=listener)
    means = passthrough_services(node, passthrough, scanner)
    work = _claim_work(node, inventory, own_changes, users if health else node.api, means)
    publisher = _publisher(node, offer)
    remediation = make_remediation(
        node,
        inventory,
        health,
        scanner=scanner,
        publisher=publisher,
        repair=work.repair,
        allocated=allocated,
        other_drivers=other_drivers,
    )
    reaper = _reaper(node, work.repair, [listener, *make_labels(node, inventory)])
    unreleased = UnreleasedDevices(node.ledger, node.identity.boot_id, offer, publisher, node.events)
    # Tests and health come first, so that the first slices already show what is known of them.
    first, always = (gate, returned, health), (publisher, reaper, unreleased)
    others = (*_meters(node, inventory, work), remediation, *_reports(node, inventory, health, remediation))
    return Parts(
        inventory=inventory,
        other_drivers=other_drivers,
        sharing=sharing,
        offer=offer,
        scanner=scanner,
        publisher=publisher,
        repair=work.repair,
        server=_server(node, work, listener, health),
        declared_mig=_declared_mig(node, offer),
        abandoned=_abandoned_partitions(node, other_drivers),
        reaper=reaper,
        role=NodeRole(options.data_dir / "role.lock", listener),
        unreleased=unreleased,
        of_role=tuple(part for part in (*first, *always, *others) if part is not None),
    )


def _stages(
    node: OpenedNode, offer: NodeOffer, health: NodeHealth | None, passthrough: NodePassthrough | None
) -> StagedFacts:
    """Return the stages from the facts of a scan to the findings: the offer, and each part that adds to it."""
    stages: list[FactsChange] = []
    if health is not None:
        stages.append(lost_gpus(health))
    if passthrough is not None:
        stages.append(passed_gpus(passthrough))
    if node.options.has_imex_channel and isinstance(node.hardware, ChannelOffering):
        stages.append(channel(node.hardware))
    return StagedFacts(offer, stages)


def _meters(node: OpenedNode, inventory: NodeInventory, work: ClaimWork) -> tuple[AgentPart | None, ...]:
    return make_limit_watch(node, work.limiter), make_meter(node, inventory)


def _reports(
    node: OpenedNode, inventory: NodeInventory, health: NodeHealth | None, remediation: Remediation | DryRun | None
) -> tuple[AgentPart | None, ...]:
    status = make_claim_status(node, inventory, is_health_watched=health is not None)
    return status, make_health_condition(node, health, remediation)


def _publisher(node: OpenedNode, offer: NodeOffer) -> Publisher:
    options = node.options
    mark = _mark_of(options.data_dir)
    return Publisher(node.api, node=options.node, driver=options.driver, offers=offer, mark=mark)


def _reaper(node: OpenedNode, repair: Repair, tasks: Sequence[PeriodicTask]) -> Reaper:
    return Reaper(repair, node.store, driver=node.options.driver, tasks=tasks, claims=node.claims)


def _claim_work(
    node: OpenedNode, inventory: NodeInventory, own_changes: OwnChanges, api: ClaimApi, means: PassthroughServices
) -> ClaimWork:
    options = node.options
    return compose(
        ClaimContext(
            node=node.identity,
            api=api,
            ledger=node.ledger,
            store=node.store,
            locks=node.locks,
            hardware=node.hardware,
            inventory=inventory,
            gone=GoneClaims(node.identity, node.api, node.ledger, node.hardware, inventory, claims=node.claims),
            folders=NodeFolders(options.kubelet_dir / "pods", cgroups=Path(options.roots.sys) / "fs/cgroup"),
            own_changes=own_changes,
            supervisor=MpsClient(socket_path(options.data_dir)),
            validation=ValidationLock(options.data_dir),
            metadata=DeviceMetadata(options.cdi_root, options.driver),
            has_metadata=options.has_metadata,
            passthrough=means,
        )
    )


def _server(node: OpenedNode, work: ClaimWork, listener: ChangeListener, health: NodeHealth | None) -> PluginServer:
    options = node.options
    return PluginServer(
        driver=options.driver,
        registrar_dir=options.registrar_dir,
        plugins_dir=options.plugins_dir,
        pod_uid=options.pod_uid,
        preparer=work.preparer,
        listener=listener,
        health=health.stream if health else None,
    )


def _declared_mig(node: OpenedNode, offer: NodeOffer) -> DeclaredMig:
    options = node.options
    return DeclaredMig(
        GeometrySource(options.mig_geometry, options.node, api=node.api, kubelet=node.claims, file=options.mig_config),
        hardware=node.hardware,
        ledger=node.ledger,
        locks=node.locks,
        offered=offer,
        events=node.events,
    )


def _abandoned_partitions(node: OpenedNode, other_drivers: OtherDrivers) -> AbandonedPartitions:
    return AbandonedPartitions(
        node.options.data_dir,
        driver=node.options.driver,
        hardware=node.hardware,
        ledger=node.ledger,
        locks=node.locks,
        boot_id=node.identity.boot_id,
        claims=other_drivers,
        events=node.events,
    )


def _mark_of(folder: Path) -> AgentMark:
    """Return the mark of the agent that this process is. Raises: NodeError."""
    return AgentMark(folder_id(folder), started(), socket.gethostname(), str(folder))


# Parts that exist only if an option asks for them and the vendor has the ability.


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
