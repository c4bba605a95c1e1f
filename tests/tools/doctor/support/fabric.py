"""Nodes of one NVLink fabric, as their slices show them, and what NVIDIA's ComputeDomain plugin publishes there."""

from __future__ import annotations

from typing import Any

from tests.tools.doctor.support import evidence as e

CLIQUE = "5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54.1"
NODES = [e.node_wire("n1"), e.node_wire("n2")]
_CHANNELS = [
    {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}},
    {"name": "daemon-0", "attributes": {"type": {"string": "daemon"}, "id": {"int": 0}}},
]


def slices(*nodes: str, domain: str = CLIQUE, has_channel: bool = False) -> list[dict[str, Any]]:
    """Return a slice of this driver for each node, with GPUs of one link domain and perhaps the host's channel."""
    linked = {"nvlinkDomain": {"string": domain}}
    devices = [{**one, "attributes": {**one["attributes"], **linked}} for one in e.DEVICES]
    if has_channel:
        attributes = {"type": {"string": "imex-channel"}, "id": {"int": 0}, **linked}
        devices.append({"name": "imex-channel-0", "attributes": attributes})
    return [e.slice_of(devices, f"s-{node}", node) for node in nodes]


def channels(node: str) -> dict[str, Any]:
    """Return the slice of NVIDIA's ComputeDomain plugin on a node."""
    return e.slice_of(_CHANNELS, f"c-{node}", node, "compute-domain.nvidia.com")
