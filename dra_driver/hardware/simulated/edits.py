"""Edits of simulated devices: character devices 1:3 (/dev/null) under the names of the real device nodes.

The edits state type and numbers, so that any container runtime can create the nodes although the host has none.
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.model.edits import DeviceNode, Edits

_NULL_MAJOR, _NULL_MINOR = 1, 3
CHANNEL_MAJOR = _NULL_MAJOR

# Numbers of MIG capability nodes as the driver assigns them: 2 global ones, then 15 GPU instances for each GPU, each of
# which has one for itself and 8 for compute instances.
_CAPS_FIRST, _CAPS_INSTANCES, _CAPS_A_INSTANCE = 3, 15, 9


def common_edits() -> Edits:
    """Return the control nodes, and the environment that keeps other runtimes from adding GPUs."""
    return _COMMON


def device_edits(gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
    """Return the GPU's node, and for a partition its two capability nodes."""
    nodes = [_null(f"/dev/nvidia{gpu.minor}")]
    if partition is not None:
        first = _CAPS_FIRST + (gpu.minor * _CAPS_INSTANCES + partition.gi_id) * _CAPS_A_INSTANCE
        nodes += [_null(f"/dev/nvidia-caps/nvidia-cap{cap}") for cap in (first, first + 1 + partition.ci_id)]
    return Edits(device_nodes=tuple(nodes))


def channel_edits() -> Edits:
    """Return the node of an IMEX channel."""
    return Edits(device_nodes=(_null("/dev/nvidia-caps-imex-channels/channel0"),))


def _null(path: str) -> DeviceNode:
    return DeviceNode(path=path, major=_NULL_MAJOR, minor=_NULL_MINOR, file_mode=0o666)


# The same object for all claims, because the writer of CDI files keeps what it rendered for the last one.
_COMMON = Edits(
    device_nodes=tuple(_null(f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm")),
    env=("NVIDIA_VISIBLE_DEVICES=void",),
)
