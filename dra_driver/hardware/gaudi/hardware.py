"""Gaudi accelerators behind the hardware port.

In: roots. Out: `Facts`, a fingerprint, container edits. Everything is read from sysfs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dra_driver.hardware import pci
from dra_driver.hardware.drm import on_bus
from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.gaudi.edits import claim_edits, device_edits, hook_path
from dra_driver.hardware.gaudi.facts import GaudiCard
from dra_driver.hardware.gaudi.reading import DRIVERS, GAUDI, functions_of, read_cards
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.sysfs.versions import semantic_version
from dra_driver.model.edits import Edits
from dra_driver.model.errors import HardwareError, Retry


class GaudiHardware:
    """The accelerators of this node.

    Args:
        roots: where the node's trees are.
    """

    vendor = "gaudi"

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def is_present(self) -> bool:
        """Return whether there is an accelerator that the kernel driver drives, or one on the bus."""
        return bool(functions_of(self._roots) or on_bus(self._roots, GAUDI))

    def discover(self) -> Facts:
        """Read everything and return it."""
        reading = read_cards(self._roots)
        undriven = [
            Problem("hardware.gpu-not-driven", address, f"it is bound to {driver or 'no driver'}, not to habanalabs")
            for address, driver in on_bus(self._roots, GAUDI)
            if driver not in DRIVERS
        ]
        version = semantic_version(pci.read_text(f"{self._roots.sys}/module/habanalabs/version"))
        problems = (*reading.problems, *undriven)
        return Facts(self.vendor, tuple(reading.cards), driver_version=version, problems=problems)

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else: here its result, which is cheap."""
        nodes = tuple(pci.entries_of(Path(self._roots.dev, "accel")))
        return Fingerprint((self.discover(), nodes, hook_path(self._roots)))

    def common_edits(self) -> Edits:
        """Return no edits: a container needs nothing but the nodes of its own cards."""
        return Edits()

    def claim_edits(self, gpus: Sequence[GpuFacts]) -> Edits:
        """Return what the cards of a claim need together: the variables that list them, and the hook."""
        return claim_edits([gpu for gpu in gpus if isinstance(gpu, GaudiCard)], self._roots)

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:  # noqa: ARG002 - there are none
        """Return the nodes of one card. Raises: HardwareError("hardware.node-missing", "hardware.gpu-lost")."""
        if not isinstance(gpu, GaudiCard):
            raise HardwareError("gpu-lost", f"{gpu.pci_address} is not a Gaudi accelerator", retry=Retry.NEVER)
        return device_edits(gpu, self._roots)

    def edit_problems(self) -> tuple[str, ...]:
        """Return what the edits leave out: the hook, if its program is not on the host."""
        if not self.is_present() or hook_path(self._roots):
            return ()
        return ("habana-container-hook is not on the host: containers do not get the cards' network interfaces",)

    def close(self) -> None:
        """Do nothing: no library and no device node is held."""
