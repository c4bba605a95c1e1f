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
# Minors of the profile's own major: GPUs first (at most 4095), then the control nodes, then the capabilities.
_CONTROL, _CAPS = 4096, 8192


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
        nodes = [self.node(f"/dev/nvidia{gpu.minor}", gpu.minor)]
        if partition is not None:
            first = _first_capability(gpu.minor, partition.gi_id)
            caps = (first, first + 1 + partition.ci_id)
            nodes += [self.node(f"/dev/nvidia-caps/nvidia-cap{cap}", _CAPS + cap) for cap in caps]
        return Edits(device_nodes=tuple(nodes))

    def users(self, gpu: SimulatedGpu, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the processes that the profile lists for the GPU, and those that have the device's node open."""
        if self.major is None:
            return gpu.processes
        minor = _CAPS + _first_capability(gpu.minor, partition.gi_id) if partition else gpu.minor
        return (*gpu.processes, *processes_with(self.roots, (), numbers=[os.makedev(self.major, minor)]))

    def node(self, path: str, minor: int) -> DeviceNode:
        """Return one node."""
        numbers = _NULL if self.major is None else (self.major, minor)
        return DeviceNode(path=path, major=numbers[0], minor=numbers[1], file_mode=0o666)


def channel_edits() -> Edits:
    """Return the node of an IMEX channel."""
    return Edits(device_nodes=(SimulatedNodes().node("/dev/nvidia-caps-imex-channels/channel0", 0),))


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
