"""Listener: what parts of the agent report changes to; it decides what follows from each change."""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.taints import DeviceTaints


class Listener(Protocol):
    """The receiver of changes. Any thread may report one."""

    def inventory_changed(self) -> None:
        """Handle a new inventory, or device nodes that may have changed."""

    def driver_changed(self) -> None:
        """Handle that the loaded driver is not the one whose library this process has open."""

    def neighbours_changed(self) -> None:
        """Handle that other software on the node started or ended, or took or released devices."""

    def became_alone(self) -> None:
        """Handle that no other driver is registered under our name any more."""

    def health_changed(self, taints: DeviceTaints) -> None:
        """Handle the taints that the devices have now."""

    def validation_changed(self) -> None:
        """Handle that other devices than before are held back, or have failed a test."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """Handle that a call of the kubelet was answered for one claim."""

    def role_gained(self) -> None:
        """Handle that this instance publishes and tidies for the node from now on."""

    def role_lost(self) -> None:
        """Handle that it no longer does."""

    def tidy(self) -> int:
        """Do the regular duties of the instance with the role, once a minute; return the number of things changed."""
