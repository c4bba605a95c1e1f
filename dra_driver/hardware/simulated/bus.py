"""The PCI bus of simulated hardware, created when it is first needed and kept until the next boot.

In: the GPUs of a profile. Out: a bus on which each has a function and an IOMMU group of its own, and which of them a
VFIO driver has now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.passthrough.drivers import GENERAL, variant_of
from dra_driver.hardware.passthrough.writing import BusAccess
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.kernel import SimulatedKernel

_DRIVER = "nvidia"
_USUAL_ID = 0x233010DE  # an H100


class SimulatedBus:
    """The bus of one node below its state folder, or in a folder of this process alone."""

    def __init__(self, state_dir: Path | None, boot_id: str, roots: Roots, node_major: int | None = None) -> None:
        self._folder = (state_dir or _own_folder()) / "simulated-bus"
        self._boot_id, self._roots, self._node_major = boot_id, roots, node_major
        self._kernel: SimulatedKernel | None = self._opened() if self._home.is_dir() else None

    def access(self, gpus: Iterable[GpuFacts]) -> BusAccess:
        """Return the bus with these GPUs on it. It is created if it does not exist yet in this boot."""
        if self._kernel is None:
            from shutil import rmtree  # noqa: PLC0415 - only where a GPU is passed through

            rmtree(self._folder, ignore_errors=True)
            kernel = self._opened()
            kernel.add_driver(GENERAL)
            for group, gpu in enumerate(gpus, 1):
                pci_id = gpu.pci_id or _USUAL_ID
                kernel.add_driver(variant_of(pci_id))
                kernel.add_function(gpu.pci_address, _DRIVER, group, pci_id=pci_id)
            self._kernel = kernel
        return BusAccess(self._kernel.roots(self._roots), self._kernel)

    def bound_elsewhere(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return which of these GPUs the vendor's driver does not have; none if there is no bus."""
        kernel = self._kernel
        return (
            frozenset(one for one in addresses if kernel.driver_of(one) not in {_DRIVER, ""}) if kernel else frozenset()
        )

    def without_gpus_bound_elsewhere(self, facts: Facts) -> Facts:
        """Return the facts without the GPUs that another driver has: a vendor's library does not report those."""
        bound_elsewhere = self.bound_elsewhere(gpu.pci_address for gpu in facts.gpus)
        if not bound_elsewhere:
            return facts
        gone = [Problem("hardware.gpu-not-driven", one, self._bound_to(one)) for one in sorted(bound_elsewhere)]
        here = tuple(gpu for gpu in facts.gpus if gpu.pci_address not in bound_elsewhere)
        return replace(facts, gpus=here, problems=(*facts.problems, *gone))

    def _bound_to(self, address: str) -> str:
        driver = self._kernel.driver_of(address) if self._kernel else ""
        return f"GPU is bound to {driver}, not to {_DRIVER}"

    def _opened(self) -> SimulatedKernel:
        return SimulatedKernel(self._home, self._node_major)

    @property
    def _home(self) -> Path:
        return self._folder / (self._boot_id or "boot")


def _own_folder() -> Path:
    from tempfile import mkdtemp  # noqa: PLC0415 - an agent has a state folder

    return Path(mkdtemp(prefix="bus-"))
