"""AgentPart: what an agent tells each of its optional parts, and what it asks them.

A part overrides what it reacts to; the rest does nothing. The agent has its parts in a list and goes through it, so
that a new part needs a place in the list and no word anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.base.wire import DeviceTaints
from dra_driver.hardware.facts import Problem


class AgentPart:
    """A part of an agent that works while the instance has the node's role. Any thread may call any method."""

    def load(self) -> None:
        """Read what was remembered, before any part starts, so that the first slices hold back what they must."""

    def start(self) -> None:
        """Begin to work; may be called again after `stop`. Raises: any error, which ends this instance."""

    def stop(self) -> None:
        """Stop working, because another instance takes over."""

    def inventory_changed(self) -> None:
        """React to a new inventory, before it is offered."""

    def health_changed(self, taints: DeviceTaints) -> None:
        """React to the taints that the devices have now."""

    def claim_prepared(self) -> None:
        """React to the answer to a Prepare of one claim."""

    def claim_ended(self) -> None:
        """React to the answer to an Unprepare of one claim."""

    @property
    def is_needed(self) -> bool:
        """Return whether the part knows something that must survive the end of the agent."""
        return False

    @property
    def waits_for_claims(self) -> bool:
        """Return whether the hardware has to be read again once a claim has ended."""
        return False

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return what does not work."""
        return ()

    def page(self) -> bytes:
        """Return the part's own families of metrics as text."""
        return b""

    def figures(self) -> Mapping[str, Mapping[str, int] | Mapping[tuple[str, str], int]]:
        """Return the part's counts for the metrics, by their name in `Snapshot`."""
        return {}
