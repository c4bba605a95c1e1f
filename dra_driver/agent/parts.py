"""Parts: the objects that live as long as the agent of one driver; `wiring` creates and connects them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.agent.inventory.scanner import Scanner
from dra_driver.agent.offer import NodeOffer
from dra_driver.agent.other_drivers import OtherDrivers
from dra_driver.agent.reports.unreleased_devices import UnreleasedDevices
from dra_driver.agent.sharing_rules import CurrentSharingRules
from dra_driver.controller.publisher import Publisher
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.plugin.instances.roles import NodeRole
from dra_driver.plugin.kubelet.server import PluginServer
from dra_driver.plugin.mig.abandoned_partitions import AbandonedPartitions
from dra_driver.plugin.mig.declared_mig import DeclaredMig
from dra_driver.plugin.repair.reaper import Reaper
from dra_driver.plugin.repair.repair import Repair


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
