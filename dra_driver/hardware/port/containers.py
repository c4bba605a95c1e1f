"""The abilities to give containers more than the edits of their devices: admin nodes, edits of a claim, a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dra_driver.hardware.facts import ChannelFacts, Facts, GpuFacts, Problem
from dra_driver.model.edits import Edits


@runtime_checkable
class AdminNodes(Protocol):
    """Optional ability: give claims with admin access more than others get."""

    def admin_edits(self, gpu: GpuFacts) -> Edits:
        """Return what only claims with admin access get of a GPU, such as the nodes of its management engine.

        Raises: HardwareError("hardware.node-missing", retry LATER).
        """


@runtime_checkable
class ClaimWide(Protocol):
    """Optional ability: give containers what all devices of a claim need together, such as one list of them."""

    def claim_edits(self, gpus: Sequence[GpuFacts]) -> Edits:
        """Return what every container with a device of a claim gets, in addition to `common_edits`."""


@runtime_checkable
class ChannelOffering(Protocol):
    """Optional ability: hand out an IMEX channel, by which programs of several nodes reach each other's GPU memory."""

    def channel(self, facts: Facts) -> ChannelFacts | Problem | None:
        """Return the channel of a node with these GPUs, why it has none, or None where there is no fabric at all."""

    def channel_edits(self) -> Edits:
        """Return the edits for a container with the channel.

        Raises: HardwareError("hardware.no-channel", LATER), ("hardware.imex-not-ready", LATER).
        """

    def channel_state(self) -> str | None:
        """Return what the node's daemon reports about its domain, such as "READY"; None if there is no daemon."""
