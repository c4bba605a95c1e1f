"""Intel's GPUs behind the hardware port.

In: roots. Out: `Facts`, a fingerprint, container edits. Everything is read from sysfs, except for the size of a GPU's
memory on kernels without the dmem controller: that is a query to its kernel driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.hardware import pci
from dra_driver.hardware.drm import on_bus, read_device_nodes, read_functions
from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.intel.facts import DRIVERS, INTEL, IntelGpu
from dra_driver.hardware.intel.reading import read_gpus
from dra_driver.hardware.node_edits import edits_of_nodes
from dra_driver.hardware.port import Fingerprint
from dra_driver.hardware.sysfs.observation import SysfsObservation
from dra_driver.model.edits import Edits, Mount, merge

if TYPE_CHECKING:
    from dra_driver.hardware.metered import Reading
    from dra_driver.hardware.sysfs.watch import VitalsSource

_BIND = ("rw", "nosuid", "noexec", "bind")


class IntelHardware(SysfsObservation):
    """Intel's GPUs on this node.

    Args:
        roots: where the node's trees are.
    """

    vendor = "intel"
    drivers = DRIVERS

    def is_present(self) -> bool:
        """Return whether there is a GPU of Intel that a kernel driver drives, or one on the bus."""
        return bool(read_functions(self._roots, INTEL, DRIVERS) or on_bus(self._roots, INTEL))

    def discover(self) -> Facts:
        """Read everything and return it."""
        reading = read_gpus(self._roots)
        undriven = [
            Problem("hardware.gpu-not-driven", address, f"GPU is bound to {driver or 'no driver'}, not to i915 or xe")
            for address, driver in on_bus(self._roots, INTEL)
            if driver not in DRIVERS
        ]
        return Facts(self.vendor, tuple(reading.gpus), problems=(*reading.problems, *undriven))

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else."""
        functions = tuple((one.address, one.drm) for one in read_functions(self._roots, INTEL, DRIVERS))
        capacity = pci.read_text(Path(self._roots.sys, "fs/cgroup/dmem.capacity"))
        return Fingerprint((functions, capacity, on_bus(self._roots, INTEL), read_device_nodes(self._roots)))

    def common_edits(self) -> Edits:
        """Return no edits: a container needs nothing but the nodes of its own devices."""
        return Edits()

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:  # noqa: ARG002 - there are none
        """Return the nodes of one device, also under their names by PCI path, which Intel's runtimes look for.

        Raises: HardwareError("hardware.node-missing", retry LATER).
        """
        edits = edits_of_nodes(gpu.nodes, self._roots)
        return merge((edits, Edits(mounts=tuple(self._by_path(gpu)))))

    def admin_edits(self, gpu: GpuFacts) -> Edits:
        """Return the nodes of the GPU's management engine. Raises: HardwareError("hardware.node-missing")."""
        return edits_of_nodes(gpu.admin_nodes, self._roots) if isinstance(gpu, IntelGpu) else Edits()

    def edit_problems(self) -> tuple[str, ...]:
        """Return nothing: the edits leave nothing out, and containers bring their own libraries."""
        return ()

    def close(self) -> None:
        """Do nothing: no library and no device node is held."""

    def _vitals_source(self) -> VitalsSource:
        from dra_driver.hardware.intel.health import read_all_vitals  # noqa: PLC0415 - only where it is on
        from dra_driver.hardware.sysfs.watch import VitalsSource  # noqa: PLC0415 - as above

        return VitalsSource(partial(read_all_vitals, self._roots))

    def _figures_reader(self) -> Callable[[], Iterable[Reading]]:
        from dra_driver.hardware.intel.metering.reading import IntelReader  # noqa: PLC0415 - only where it is on

        return IntelReader(self._roots).read

    def _by_path(self, gpu: GpuFacts) -> list[Mount]:
        found = []
        for node in gpu.nodes:
            kind = "card" if node.startswith("dri/card") else "render"
            name = f"dri/by-path/pci-{gpu.pci_address}-{kind}"
            if os.path.lexists(f"{self._roots.dev}/{name}"):
                found.append(Mount(f"{self._roots.dev}/{node}", f"/dev/{name}", _BIND))
        return found
