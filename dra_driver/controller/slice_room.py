"""Slice room: how many slices of one node are kept in memory, and how large they may be together.

In: slices as the API server sends them. Out: nothing, or an error that stops publishing, and nothing else. A node
publishes a few dozen slices; a server that sends far more is broken, or somebody creates slices in this node's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dra_driver.kube.answers import memory_of
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.wire import SliceWire

MAX_SLICES = 1_000
MAX_MEMORY = 32 << 20  # bytes; a slice with 128 devices takes about 2 MiB


def memory_of_slice(wire: SliceWire) -> int:
    """Return about how many bytes of memory a slice takes."""
    return memory_of(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def check_room(slices: int, memory: int) -> None:
    """Check the number of all slices of a node and their memory together. Raises: ApiError("api.slices-too-large")."""
    if slices > MAX_SLICES or memory > MAX_MEMORY:
        raise ApiError(
            "slices-too-large",
            f"the API server has more than {MAX_SLICES} slices of this driver and node, or they take more than "
            f"{MAX_MEMORY >> 20} MiB of memory: nothing is published until they are gone",
            hint="delete those that this agent did not write: kubectl get resourceslices",
            retry=Retry.LATER,
        )


def check_room_for(wires: Iterable[SliceWire]) -> None:
    """Check these slices, which are all of a node. Raises: ApiError("api.slices-too-large")."""
    count = memory = 0
    for wire in wires:
        count, memory = count + 1, memory + memory_of_slice(wire)
        check_room(count, memory)
