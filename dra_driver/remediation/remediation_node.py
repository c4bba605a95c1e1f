"""RemediationNode: the interface of the node that remediation works on. The agent implements it.

Every method may be called again after a crash: what is already done is not done twice. Claims and processes are
returned as texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from dra_driver.hardware.facts import GpuFacts
from dra_driver.health.fault import Fault
from dra_driver.remediation.policy import SiteCommand
from dra_driver.validation.result import ValidationResult


class RemediationNode(Protocol):
    """The node, as the steps of a remediation see it. Only the remediation's thread calls it."""

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read, including those that are lost."""

    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults, without those that `hold` has set."""

    def was_seen_since(self, at: float) -> bool:
        """Return whether the hardware was looked at after a time (boot time)."""

    def was_read_since(self, gpu: str, at: float) -> bool:
        """Return whether the GPU's health was read after a time (boot time)."""

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        """Keep new claims from the subjects of these faults by taints, and from no others.

        None means that it is not known which they are: until it is, no GPU is offered that was not offered before.
        """

    def is_published(self) -> bool:
        """Return whether the taints that `hold` has set are published."""

    def users(self, gpus: Collection[str]) -> tuple[str, ...]:
        """Return the claims that hold one of these GPUs, or a part of one, and pods that outlive theirs.

        Raises: DriverError when they can't be determined.
        """

    def clients(self, gpu: GpuFacts) -> tuple[str, ...]:
        """Return the processes that have the GPU open, with their pods, but none of this agent."""

    def send_event(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        """Send an Event about the node, and about the pods that use these GPUs."""

    def end_sharing(self, gpu: GpuFacts) -> None:
        """End our MPS daemons of a GPU that no claim holds. Raises: DriverError."""

    def persistence(self, gpu: GpuFacts) -> bool | None:
        """Return whether the GPU is in persistence mode; None if that is not known."""

    def set_persistence(self, gpu: GpuFacts, *, enabled: bool) -> None:
        """Switch persistence mode. Raises: DriverError."""

    def closed(self, gpus: Collection[str]) -> AbstractContextManager[str]:
        """Return a context that keeps Prepare from these GPUs, and in which this agent does not use its library.

        Calls about other GPUs wait meanwhile. The context yields "", or why this is not possible now. However it ends,
        the GPUs and the library are usable again after it, and the hardware is looked at.
        """

    def reset(self, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
        """Reset these GPUs together. Raises: HardwareError."""

    def run(self, command: SiteCommand, gpu: GpuFacts) -> None:
        """Run the administrator's program. Raises: NodeError."""

    def ask_reboot(self, text: str) -> None:
        """Ask for a reboot of this machine in this boot. Raises: NodeError."""

    def withdraw_reboot(self) -> None:
        """Withdraw the request of this or an earlier boot; do nothing if there is none."""

    def is_reboot_asked(self) -> bool:
        """Return whether a reboot of this machine was requested in this boot."""

    def forget_errors(self, gpu: str) -> None:
        """Forget the errors that were reported for a GPU before it was remediated; lasting ones are found again."""

    def validate(self, gpu: GpuFacts) -> ValidationResult:
        """Validate a GPU that no claim and no process uses."""

    def acquire_slot(self) -> float:
        """Acquire a slot. Return 0 if this node may act now, otherwise the seconds until another node's slot may end.

        Raises: ApiError.
        """

    def renew_slot(self) -> None:
        """Keep the slot that was taken. A failure is logged."""

    def release_slot(self) -> None:
        """Return the slot before its time is over. A failure is logged; the slot then expires."""
