"""Gaudi accelerators for virtual machines: what the PCI bus shows of one without a host driver."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.gaudi.facts import GaudiCard
from dra_driver.hardware.port import Roots


def with_pci_facts(card: GpuFacts, roots: Roots) -> GpuFacts:  # noqa: ARG001 - the numbers alone tell something here
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(card, GaudiCard) or card.pci_id is None:
        return card
    return replace(card, device_id=card.pci_id >> 16)
