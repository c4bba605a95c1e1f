"""Edits of simulated devices: the real device nodes' names, with the numbers of /dev/null or of the profile.

The edits state type and numbers, so that any container runtime can create the nodes although the host has none. Nodes
of the profile's own major can be told apart, so the processes that have one open are those that use the device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.passthrough.users import processes_with
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.model.edits import DeviceNode, Edits

_NULL = 1, 3
CHANNEL_MAJOR = 1

# Numbers of MIG capability nodes as the driver assigns them: 2 global ones, then 15 GPU instances for each GPU, each of
# which has one for itself and 8 for compute instances.
_CAPS_FIRST, _CAPS_INSTANCES, _CAPS_A_INSTANCE = 3, 15, 9
# Minors of the profile's own major: 32 for each GPU (its node, two for each of 15 GPU instances, one for VFIO), and the
# control nodes after those of all GPUs (at most 4096).
OF_A_GPU, _CONTROL = 32, 4096 * 32


@dataclass(frozen=True, slots=True)
class SimulatedNodes:
    """The device nodes of simulated GPUs. Without a major of their own all of them are /dev/null."""

    major: int | None = None
    roots: Roots = field(default_factory=Roots)

    def common_edits(self) -> Edits:
        """Return the control nodes, and the environment that keeps other runtimes from adding GPUs."""
        return _COMMON if self.major is None else _common(self)

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the GPU's node, and for a partition its two capability nodes."""
        nodes = [self.node(f"/dev/nvidia{gpu.minor}", _minor(gpu.minor))]
        if partition is not None:
            first = _first_capability(gpu.minor, partition.gi_id)
            minors = (_minor(gpu.minor, partition.gi_id), _minor(gpu.minor, partition.gi_id) + 1)
            caps = zip((first, first + 1 + partition.ci_id), minors, strict=True)
            nodes += [self.node(f"/dev/nvidia-caps/nvidia-cap{cap}", minor) for cap, minor in caps]
        return Edits(device_nodes=tuple(nodes))

    def users(self, gpu: SimulatedGpu, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the processes that the profile lists for the GPU, and those that have the device's node open."""
        if self.major is None:
            return gpu.processes
        minor = _minor(gpu.minor, partition.gi_id if partition else None)
        return (*gpu.processes, *processes_with(self.roots, (), numbers=[os.makedev(self.major, minor)]))

    def node(self, path: str, minor: int) -> DeviceNode:
        """Return one node."""
        numbers = _NULL if self.major is None else (self.major, minor)
        return DeviceNode(path=path, major=numbers[0], minor=numbers[1], file_mode=0o666)


def channel_edits() -> Edits:
    """Return the node of an IMEX channel."""
    return Edits(device_nodes=(SimulatedNodes().node("/dev/nvidia-caps-imex-channels/channel0", 0),))


def _minor(gpu: int, gi_id: int | None = None) -> int:
    """Return the minor of a GPU's node, or of the capability of one of its instances."""
    return gpu * OF_A_GPU + (0 if gi_id is None else 2 * gi_id - 1)


def _first_capability(minor: int, gi_id: int) -> int:
    return _CAPS_FIRST + (minor * _CAPS_INSTANCES + gi_id) * _CAPS_A_INSTANCE


def _common(nodes: SimulatedNodes) -> Edits:
    names = enumerate(("nvidiactl", "nvidia-uvm"), _CONTROL)
    return Edits(
        device_nodes=tuple(nodes.node(f"/dev/{name}", minor) for minor, name in names),
        env=("NVIDIA_VISIBLE_DEVICES=void",),
    )


# The same object for all claims, because the writer of CDI files keeps what it rendered for the last one.
_COMMON = _common(SimulatedNodes())
