"""NodeLabels: the labels that the vendor defines for this node.

In: the facts of the node's GPUs. Out: labels for Node Feature Discovery, by a file or by an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dra_driver.agent.inventory.node_inventory import NodeInventory
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.model.vendors import registered


class LabelSource(Protocol):
    """The labels of a node, as they are now."""

    def now(self) -> Mapping[str, str] | None:
        """Return the current labels; None while they are not known."""


class NodeLabels:
    """The labels that a vendor has for this node; `vendor` is the one whose GPUs are read."""

    def __init__(self, inventory: NodeInventory, vendor: str, roots: Roots) -> None:
        self._inventory, self._vendor, self._roots = inventory, vendor, roots

    def now(self) -> Mapping[str, str] | None:
        """Return the current labels; None while the hardware has not answered."""
        facts = self._inventory.facts
        if facts is None or facts.waiting_for:
            return None
        name = next((gpu.vendor for gpu in facts.gpus), self._vendor)
        labels_of = load_vendor(name).labels if registered(name) else None
        return labels_of(facts, self._roots) if labels_of else {}
