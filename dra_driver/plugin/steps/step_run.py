"""Step run and undo run: what the performers share while the steps of one claim are carried out or undone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_driver.claims.steps.sharing import SharingStep
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.model.edits import Edits
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition, RecordedSharing, RecordedStep


class MadePartition(NamedTuple):
    """A partition that exists, its GPU, and what is recorded about it."""

    gpu: GpuFacts
    facts: PartitionFacts
    recorded: RecordedPartition


class StepRun:
    """The run of one claim's steps: what is recorded about them, and what they have made so far.

    Several threads may carry out steps. Later steps use what earlier ones made:

    Attributes:
        partitions: the partitions, by device name.
        passed: the container edits of GPUs for virtual machines, by device name.
        shared: the steps of shared devices, with their records.
        variables: names of devices in the CDI file, with container edits that are added to theirs.
        is_changed: whether the record differs from the one at the start.
        is_file_changed: whether the CDI file had to be written.
    """

    __slots__ = (
        "_ledger",
        "_recorded",
        "_recording",
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
        self._recording = threading.Lock()  # so that each write contains what earlier ones recorded
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
        """Keep the record of what a step found or made; the claim's commit makes it durable."""
        self._recorded[step.identity] = step
        self.is_changed = True

    def record(self, step: RecordedStep) -> None:
        """Record durably what a step is about to do. Raises: LedgerError."""
        with self._recording:
            self.keep(step)
            self._ledger.set_steps(self.uid, self.recorded)

    def patience(self) -> AbstractContextManager[None]:
        """Return a context in which this thread waits for a locked ledger until the call's deadline."""
        return self._ledger.until(self.deadline)


@dataclass(slots=True)
class UndoRun:
    """The run in which one claim's steps are undone.

    Attributes:
        failed: the identities of the steps that could not be undone this time.
        modes_off: the PCI addresses of GPUs whose MIG mode was switched off because nothing needs it any more.
        alone_on: the PCI addresses of GPUs whose MIG mode is ours and of which no other claim had a part at the start.
    """

    uid: str
    deadline: Deadline
    failed: set[tuple[str, str]] = field(default_factory=set)
    modes_off: set[str] = field(default_factory=set)
    alone_on: set[str] = field(default_factory=set)
