"""What every vendor implements: presence, discovery, the probe, and what containers need.

`discover` is a pure read with injected roots and returns its results in a deterministic order. `fingerprint` is the
cheap probe: while its value stays the same there is no need to discover again. The edit methods look at device nodes
and files only, never at the vendor's library: Prepare of a whole GPU makes no library call.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts
from dra_driver.model.edits import Edits


class Roots(NamedTuple):
    """Where this process sees the node's trees, and where the container runtime sees the same files.

    `dev`, `sys` and `proc` replace /dev, /sys and /proc. `driver` is the path of the NVIDIA driver root on the *host*;
    `driver_mount` is where this process sees that tree (both are "/" for a driver installed on the host).
    """

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    driver: str = "/"
    driver_mount: str = "/"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The result of the cheap probe.

    `mig` holds, for each GPU by PCI address, a value that changes with its MIG mode and partitions; `mig_nodes` is one
    that changes with the device nodes of any partition; `rest` changes with everything else.
    """

    rest: Hashable
    mig: tuple[tuple[str, Hashable], ...] = ()
    mig_nodes: Hashable = None

    def others_differ(self, before: Fingerprint, addresses: Collection[str]) -> bool:
        """Return whether anything changed since `before` that a change of these GPUs' partitions does not explain."""
        others = [tuple(one for one in seen.mig if one[0] not in addresses) for seen in (self, before)]
        return self.rest != before.rest or others[0] != others[1]


class Hardware(Protocol):
    """One vendor's hardware on this node. Any thread may call any method, and every method may raise HardwareError."""

    vendor: str  # "nvidia", "simulated"

    def is_present(self) -> bool:
        """Return whether a matching PCI function exists (from sysfs only: this needs no library and no driver)."""

    def discover(self) -> Facts:
        """Read everything and return it.

        One bad GPU never makes it raise: that GPU is dropped and listed in `Facts.problems`.

        Raises: HardwareError where nothing at all can be read, such as ("hardware.driver-changed", retry LATER).
        """

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else.

        It is cheap: well below 10 ms for a node of eight GPUs, and bounded if a GPU hangs. It opens no library.
        """

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs: control nodes, libraries, environment.

        The same files on the node give the same edits. What is missing is left out, and reported by `edit_problems`.
        """

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the edits for one device: its nodes, with their current numbers from stat or the driver's tables.

        `partition` is the MIG partition of `gpu` that is meant, None for the whole GPU.

        Raises: HardwareError("hardware.node-missing", retry LATER), naming the node that does not exist.
        """

    def edit_problems(self) -> tuple[str, ...]:
        """Return, in plain words, what the edits leave out and why (no hook binary, no libcuda …)."""

    def close(self) -> None:
        """Release the vendor's library and every device node, so that the driver can be unloaded. Idempotent."""
