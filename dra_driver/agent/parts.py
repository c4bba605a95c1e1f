"""Parts: the objects that live as long as the agent of one driver; `wiring` creates and connects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.agent.inventory.scanner import Scanner
from dra_driver.agent.offer import NodeOffer
from dra_driver.agent.other_drivers import OtherDrivers
from dra_driver.agent.reports.unreleased_devices import UnreleasedDevices
from dra_driver.agent.sharing_rules import CurrentSharingRules
from dra_driver.controller.publisher import Publisher
from dra_driver.plugin.instances.roles import NodeRole
from dra_driver.plugin.kubelet.server import PluginServer
from dra_driver.plugin.mig.abandoned_partitions import AbandonedPartitions
from dra_driver.plugin.mig.declared_mig import DeclaredMig
from dra_driver.plugin.repair.reaper import Reaper
from dra_driver.plugin.repair.repair import Repair

if TYPE_CHECKING:
    from dra_driver.agent.node_health import NodeHealth
    from dra_driver.agent.passthrough.node_passthrough import NodePassthrough
    from dra_driver.agent.reports.claim_status import ClaimStatus
    from dra_driver.agent.reports.health_condition import HealthCondition
    from dra_driver.agent.reports.limit_watch import LimitWatch
    from dra_driver.agent.validation.validation_gate import ValidationGate
    from dra_driver.metering.node_meter import NodeMeter
    from dra_driver.remediation.dry_run import DryRun
    from dra_driver.remediation.remediation import Remediation


class RolePart(Protocol):
    """A part that works only while this instance has the node's role."""

    def start(self) -> None:
        """Begin to work; may be called again after `stop`."""

    def stop(self) -> None:
        """Stop working."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that live as long as the agent."""

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
    gate: ValidationGate | None
    health: NodeHealth | None
    meter: NodeMeter | None
    claim_status: ClaimStatus | None
    remediation: Remediation | DryRun | None
    passthrough: NodePassthrough | None
    health_condition: HealthCondition | None
    limit_watch: LimitWatch | None
    unreleased: UnreleasedDevices

    def of_role(self) -> tuple[RolePart, ...]:
        """Return the parts that work only with the node's role, in the order in which they have to start.

        Tests and health come first, so that the first slices already show what is known of them.
        """
        returned = self.passthrough.returned if self.passthrough is not None else None
        known: tuple[RolePart | None, ...] = (self.gate, returned, self.health)
        always = (self.publisher, self.reaper, self.unreleased)
        others = (self.limit_watch, self.meter, self.remediation, self.claim_status, self.health_condition)
        return tuple(part for part in (*known, *always, *others) if part is not None)
