"""ChangeListener: the object that the parts of the agent notify of changes; it decides what follows from each."""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.taints import DeviceTaints


class ChangeListener(Protocol):
    """The receiver of changes. Any thread may report one."""

    def inventory_changed(self) -> None:
        """React to a new inventory, or to device nodes that may have changed."""

    def driver_changed(self) -> None:
        """React to a loaded driver that is not the one whose library this process has open."""

    def other_drivers_changed(self) -> None:
        """React to other software on the node that started or ended, or that took or released devices."""

    def same_name_drivers_left(self) -> None:
        """React to the end of the last other driver that was registered under our name."""

    def health_changed(self, taints: DeviceTaints) -> None:
        """React to the taints that the devices have now."""

    def validation_changed(self) -> None:
        """React to a change of the devices that are held back, or that have failed a test."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """React to the answer to a call of the kubelet for one claim."""

    def role_gained(self) -> None:
        """React to getting the node's role: from now on this instance publishes and cleans up for the node."""

    def role_lost(self) -> None:
        """React to losing the node's role."""

    def tidy(self) -> int:
        """Do what the instance with the role does once a minute; return how many things were changed."""
