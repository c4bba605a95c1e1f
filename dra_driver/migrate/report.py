"""What a migration says: each change with its reason, each loss with what to do about it.

Out: frozen rows, in the order of the text. `code` is stable; docs/migrate.md lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Step = str | int


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was changed: `path` leads to it inside `subject`, as `spec.containers[0].resources`."""

    code: str
    subject: str
    path: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class MigrationLoss:
    """Something that is lost, left as it is, or to be looked at; `remedy` says what can be done."""

    code: str
    subject: str
    path: str
    what: str
    remedy: str


@dataclass(slots=True)
class FileReport:
    """What is said of one file, written by whoever changes it."""

    changes: list[Change] = field(default_factory=list)
    losses: list[MigrationLoss] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """One object of a file and where it is said to be; rows about it go to `report`."""

    name: str
    report: FileReport
    path: tuple[Step, ...] = ()

    def below(self, *steps: Step) -> ReportSubject:
        """Return a place inside."""
        return ReportSubject(self.name, self.report, (*self.path, *steps))

    def changed(self, code: str, what: str, why: str, *steps: Step) -> None:
        """Say what was changed."""
        self.report.changes.append(Change(code, self.name, shown_path((*self.path, *steps)), what, why))

    def lost(self, code: str, what: str, remedy: str, *steps: Step) -> None:
        """Say what was lost or left."""
        row = MigrationLoss(code, self.name, shown_path((*self.path, *steps)), what, remedy)
        if row not in self.report.losses:
            self.report.losses.append(row)


def shown_path(path: tuple[Step, ...]) -> str:
    """Write a path for people.

    >>> shown_path(("spec", "containers", 0, "resources"))
    'spec.containers[0].resources'
    """
    made = ""
    for step in path:
        made += f"[{step}]" if isinstance(step, int) else f".{step}" if made else step
    return made
