"""Listener: who hears of what happens upstream, and decides what follows from it downstream."""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.taints import DeviceTaints


class Listener(Protocol):
    """What hears of changes, each of which any thread may report."""

    def inventory_changed(self) -> None:
        """Hear of a new inventory, or of device nodes that may have changed."""

    def driver_changed(self) -> None:
        """Hear that the loaded driver is not the one whose library this process has open."""

    def neighbours_changed(self) -> None:
        """Hear that other software came or went, or took or released devices."""

    def became_alone(self) -> None:
        """Hear that no other driver of our name is left."""

    def health_changed(self, taints: DeviceTaints) -> None:
        """Hear which taints the devices have now."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """Hear that a call of the kubelet was answered for one claim."""

    def role_gained(self) -> None:
        """Hear that this instance publishes and tidies for the node."""

    def role_lost(self) -> None:
        """Hear that it no longer does."""

    def tidy(self) -> int:
        """Keep right what the instance with the role has to, once a minute; return the number of things changed."""
