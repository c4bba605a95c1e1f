"""RemediationCase: the state of one GPU's remediation, as a value that is on disk after every change.

Times are in boot time (`model.machine`), and seconds since 1970 on disk. The stages follow each other in the order of
`Stage`; a failed attempt leads back to DRAIN_ASKED, or to ESCALATED if no further one is allowed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from dra_driver.hardware.facts import GpuFacts
from dra_driver.health.fault import FaultKey
from dra_driver.remediation.policy import RemediationAction

SUPPORT, EXAMINED = "support", "examined"


class Stage(enum.StrEnum):
    """The stages of a case. A stage is reached once that is recorded on disk."""

    DETECTED = "detected"  # the fault exists; another GPU of the node may be under remediation
    TAINTED = "tainted"  # the slices that keep new claims from the GPU are published
    DRAIN_ASKED = "drain-asked"  # the users of the GPU were informed
    DRAINED = "drained"  # no claim holds it, and the cluster's budget allows this node to act
    NVML_LET_GO = "nvml-let-go"  # no process has it open, not even this agent, and the action is under way
    ACTED = "acted"  # the action was carried out
    SAME_UUID_FOUND = "same-uuid-found"  # the same GPU is in its place again
    VALIDATED = "validated"  # it has passed a test
    RETURNED = "returned"  # it is offered again
    ESCALATED = "escalated"  # a person has to examine it

    @property
    def is_open(self) -> bool:
        """Whether the agent continues the case without a person."""
        return self not in (Stage.RETURNED, Stage.ESCALATED)

    @property
    def is_being_repaired(self) -> bool:
        """Whether something has been done to the GPU, so that some other GPUs of the node have to wait."""
        return self.is_open and self is not Stage.DETECTED


@dataclass(frozen=True, slots=True)
class RemediationCase:
    """The remediation of one GPU. `key` and `value` are those of the fault.

    `since` is when the fault began, a time that people read, also in memory. `tries` counts the actions that were
    begun; `boot` is the boot in which the last one was begun. `persistence` are the GPUs whose persistence mode was
    switched off, `peers` those that were drained too. `waits_for` is a sentence about what the case waits for, or why
    it ended; `not_before` is when the next try may begin. `is_acting` is true from before an action begins until its
    end is on disk, `is_unproven` after a failed validation.
    """

    gpu: str  # PCI address
    uuid: str
    key: FaultKey
    value: str
    since: float
    began: float
    stage: Stage
    stage_at: float
    action: RemediationAction
    tries: int = 0
    boot: str = ""
    peers: tuple[str, ...] = ()
    persistence: tuple[str, ...] = ()
    waits_for: str = ""
    not_before: float = 0.0
    is_acting: bool = False
    is_unproven: bool = False

    @property
    def reason(self) -> str:
        """Why the GPU is kept from claims: its action, EXAMINED if there is none, SUPPORT if it waits for a person."""
        if self.stage is Stage.ESCALATED:
            return SUPPORT
        return EXAMINED if self.action is RemediationAction.NONE else str(self.action)

    def at(self, stage: Stage, now: float, **changes: Any) -> Self:
        """Return the case at another stage, with other changes. It no longer waits for anything."""
        return replace(self, stage=stage, stage_at=now, **{"waits_for": "", **changes})

    def shifted(self, seconds: float) -> Self:
        """Return the case with other times, as those of another clock."""
        times = {name: getattr(self, name) + seconds for name in ("began", "stage_at")}
        return replace(self, **times, not_before=self.not_before + seconds if self.not_before else 0.0)

    def gpu_among(self, gpus: Iterable[GpuFacts]) -> GpuFacts | None:
        """Return the case's GPU as last read; None if it is gone."""
        return next((one for one in gpus if one.pci_address == self.gpu), None)

    def acted_on_among(self, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
        """Return the case's GPU as last read, with peers that can only be reset together; empty if it is gone."""
        gpu = self.gpu_among(gpus)
        if gpu is None:
            return ()
        peers = [one for one in gpus if one.pci_address in self.peers] if gpu.is_reset_with_peers else []
        return (gpu, *peers)

    def waiting(self, text: str) -> Self:
        """Return the case with a text about what it waits for."""
        return replace(self, waits_for=text)

    def to_wire(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the case that `to_wire` described; fields that a newer agent added are left out.

        Raises: KeyError, TypeError, ValueError for anything else.
        """
        values = {one.name: wire[one.name] for one in fields(cls) if one.name in wire}
        kinds = {"key": FaultKey, "stage": Stage, "action": RemediationAction, "peers": tuple, "persistence": tuple}
        return cls(**{**values, **{name: kind(wire[name]) for name, kind in kinds.items()}})
