"""Adversities: what else goes wrong on a node in a storm, again and again for some seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Adversity:
    """Nothing else goes wrong."""

    name = "none"
    keeps_hours = True  # whether the hours of namespaces can be compared with the storm's own clock

    def prepare(self, storm: Any) -> None:
        """Take what is needed of a storm whose agents are about to be started."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that agents need."""
        return {}

    def run(self) -> None:
        """Begin and end it until the storm has had enough; in a thread of its own."""

    def explains(self, error: str) -> bool:
        """Return whether a refusal is due to it."""
        del error
        return False


NOTHING = Adversity()
