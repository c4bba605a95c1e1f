"""What this node would publish: its inventory under the settings of `--mig`, and whether the API server would keep it.

In: the chosen hardware and a cluster, if one can be reached. Out: the inventory, how each GPU is offered, and the
server's answer. It reads the ledger of an agent on this node to tell the agent's partitions from an administrator's,
and asks the server with a dry-run create. Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.hardware.facts import Facts
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.device import Device
from dra_driver.inventory.mig.offer_text import ON_DEMAND, offer_text
from dra_driver.inventory.mig.partitions import MigPolicy, Ownership
from dra_driver.inventory.offering import Inventory
from dra_driver.inventory.sharing.rules import SharingRules
from dra_driver.model.errors import DriverError
from dra_driver.model.shares import DeviceType
from dra_driver.views.access import ClusterAccess
from dra_driver.views.node.settings import NodeSettings

SHARED = "whole, and shared"


@dataclass(frozen=True, slots=True)
class OfferPreview:
    """What a node would publish.

    `are_counters_kept` is None if no server answered whether it keeps shared counters; `server` is the server that was
    asked, or why none was. `exceptions` has the GPUs that are not partitioned on demand, with the reasons.
    """

    inventory: Inventory
    are_counters_kept: bool | None
    server: str
    exceptions: Mapping[str, str]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are published: with counters, unless the server drops those."""
        return (
            self.inventory.offering.plain
            if self.are_counters_kept is False and self.is_on_demand
            else self.inventory.devices
        )

    @property
    def is_on_demand(self) -> bool:
        """Return whether any GPU would be partitioned on demand."""
        return bool(self.inventory.offering.counter_sets)


def offer_of(selected: NodeSettings, facts: Facts, access: ClusterAccess, rules: SharingRules) -> OfferPreview:
    """Work out what the agent would publish for this hardware."""
    policy = MigPolicy(selected.is_mig_dynamic, selected.has_all_profiles, _ownership(selected))
    inventory = build_inventory(facts, policy, rules)
    shared = {device.gpu.pci_address for device in inventory.devices if device.type is DeviceType.GPU_SHARE}
    partitionable = [gpu for gpu in facts.gpus if gpu.mig_profiles or gpu.mig_enabled]
    how_of = {
        gpu.pci_address: SHARED if gpu.pci_address in shared else offer_text(gpu, policy) for gpu in partitionable
    }
    exceptions = {address: how for address, how in how_of.items() if how != ON_DEMAND}
    are_counters_kept, server = _ask(selected, inventory, access) if inventory.offering.counter_sets else (None, "")
    return OfferPreview(inventory, are_counters_kept, server, exceptions)


def runs_here(selected: NodeSettings) -> bool:
    """Return whether an agent has run on this node."""
    return (selected.data / "ledger.db").exists()


def _ownership(selected: NodeSettings) -> Ownership:
    """Read which partitions the agent made. Without a ledger, every partition is an administrator's."""
    if not runs_here(selected):
        return Ownership()
    from dra_driver.plugin.ledger.ledger import Ledger
    from dra_driver.plugin.locks import NodeLocks
    from dra_driver.plugin.mig.partition_owners import PartitionOwners
    from dra_driver.plugin.node_identity import this_node

    ledger = Ledger(selected.data / "ledger.db", reads_only=True)
    try:
        node = this_node(selected.node, selected.driver, selected.roots.proc)
        return PartitionOwners(selected.hardware, ledger, NodeLocks(selected.data / "locks"), node.boot_id).of_ledger()
    except DriverError:
        return Ownership()
    finally:
        ledger.close()


def _ask(selected: NodeSettings, inventory: Inventory, access: ClusterAccess) -> tuple[bool | None, str]:
    """Ask a server whether it keeps shared counters; return the answer, and which server was asked or why none was."""
    if not access.kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None, "no API server was asked, because there is no --kubeconfig"
    from dra_driver.controller.content import content_of
    from dra_driver.controller.layout import SliceSpec
    from dra_driver.controller.probe import keeps_counters
    from dra_driver.controller.writer import SliceWriter
    from dra_driver.model.names import pool_name

    empty = SliceSpec(selected.driver, selected.node, pool_name(selected.node, selected.driver))
    try:
        api = access.connect()
        try:
            version = api.server_version()
            content = content_of(inventory.offering, server_minor=version.minor)
            kept = keeps_counters(SliceWriter(api), content, empty, minor=version.minor)
        finally:
            api.close()
    except DriverError as error:
        return None, f"the API server did not answer: {error}"
    return kept, f"API server {version.git}"
