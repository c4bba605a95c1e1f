"""StepRun and Undoing: what the performers of one claim's steps share while the steps are carried out or undone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from dra_driver.claims.sharing_plan import SharingStep
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.model.edits import Edits
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition, RecordedSharing, RecordedStep


@dataclass(frozen=True, slots=True)
class MadePartition:
    """A partition that exists, its GPU, and what is recorded about it."""

    gpu: GpuFacts
    facts: PartitionFacts
    recorded: RecordedPartition


class StepRun:
    """One claim's steps: what is recorded about them, and what they have made so far for the steps that follow.

    Several threads may carry out steps. `partitions`, and what containers get of `passed` GPUs, are by device name;
    `variables` is what steps add to the edits of devices, which are named as in the CDI file.
    `is_changed` says whether the record differs from the one at the start, and `is_file_changed` whether the CDI file
    had to be written.
    """

    __slots__ = (
        "_ledger",
        "_noting",
        "_recorded",
        "deadline",
        "is_changed",
        "is_file_changed",
        "partitions",
        "passed",
        "shared",
        "uid",
        "variables",
    )

    def __init__(self, uid: str, recorded: Iterable[RecordedStep], ledger: Ledger, deadline: Deadline) -> None:
        self.uid, self.deadline, self._ledger = uid, deadline, ledger
        self._noting = threading.Lock()  # ensures that a later note contains what an earlier one recorded
        self._recorded = {step.identity: step for step in recorded}
        self.partitions: dict[str, MadePartition] = {}
        self.passed: dict[str, Edits] = {}
        self.variables: list[tuple[tuple[str, ...], Edits]] = []
        self.shared: list[tuple[SharingStep, RecordedSharing]] = []
        self.is_changed = self.is_file_changed = False

    @property
    def recorded(self) -> tuple[RecordedStep, ...]:
        """What is recorded about the steps, in order."""
        return tuple(self._recorded.values())

    def record_of(self, kind: str, key: str) -> RecordedStep:
        """Return what is recorded about a step."""
        return self._recorded[kind, key]

    def by_identity(self) -> dict[tuple[str, str], RecordedStep]:
        """Return what is recorded about the steps, by kind and key."""
        return dict(self._recorded)

    def keep(self, step: RecordedStep) -> None:
        """Keep what a step found or made; it becomes durable with the claim's commit."""
        self._recorded[step.identity] = step
        self.is_changed = True

    def note(self, step: RecordedStep) -> None:
        """Record an intent durably, before anything is done that the ledger does not know about.

        Raises: LedgerError.
        """
        with self._noting:
            self.keep(step)
            self._ledger.set_steps(self.uid, self.recorded)

    def patience(self) -> AbstractContextManager[None]:
        """Make the current thread wait for a locked ledger until the deadline, as the call's own thread does."""
        return self._ledger.until(self.deadline)


@dataclass(slots=True)
class Undoing:
    """The undoing of one claim's steps.

    `failed` are the identities of those that could not be undone this time, and `modes_off` the GPUs, by PCI address,
    whose MIG mode was switched off because nothing needs it any more. `alone_on` are those
    whose MIG mode is ours and which had parts of no other claim when the undoing began.
    """

    uid: str
    deadline: Deadline
    failed: set[tuple[str, str]] = field(default_factory=set)
    modes_off: set[str] = field(default_factory=set)
    alone_on: set[str] = field(default_factory=set)
