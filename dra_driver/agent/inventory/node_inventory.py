"""Node inventory: the newest inventory of this node, and the findings from which it was built.

Only one thread writes; any thread may read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.mig.partitions import STATIC, MigPolicy
from dra_driver.inventory.offering import Inventory
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules

NOT_READ_YET = Inventory(waiting_for="the first scan of the hardware")


@dataclass(frozen=True, slots=True)
class InventoryInputs:
    """What an inventory is built from: the facts, how MIG is offered, whose the partitions are, and what is shared."""

    facts: Facts
    policy: MigPolicy = STATIC
    sharing: SharingRules = NOTHING_SHARED


class NodeInventory:
    """The newest inventory of one node, which is `NOT_READ_YET` until the hardware has been read."""

    def __init__(self) -> None:
        self._findings: InventoryInputs | None = None
        self.current: Inventory = NOT_READ_YET

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read, offered or not."""
        return self._findings.facts.gpus if self._findings is not None else ()

    def take(self, findings: InventoryInputs) -> Inventory:
        """Build the inventory from new findings, and return the previous one, which stays if nothing has changed."""
        before, self._findings = self.current, findings
        built = build_inventory(findings.facts, findings.policy, findings.sharing)
        if built != before:
            self.current = built
        return before

    @property
    def facts(self) -> Facts | None:
        """The facts behind the newest inventory; None until the hardware has been read."""
        return self._findings.facts if self._findings else None

    def holding(self, names: Collection[str]) -> Inventory:
        """Return the newest inventory as if claims also held these devices. The hardware is not read."""
        if self._findings is None:
            return self.current
        policy = self._findings.policy
        ownership = replace(policy.ownership, held=policy.ownership.held.union(names))
        return build_inventory(self._findings.facts, replace(policy, ownership=ownership), self._findings.sharing)
