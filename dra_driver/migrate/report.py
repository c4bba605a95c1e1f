"""The report of a migration: each change with its reason, each loss with its remedy.

Out: frozen rows, in the order of the text. `code` is stable; docs/migrate.md lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Step = str | int


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `path` leads to it inside `subject`, for example `spec.containers[0].resources`."""

    code: str
    subject: str
    path: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class MigrationLoss:
    """Something that is lost, left unchanged, or needs attention; `remedy` explains what to do."""

    code: str
    subject: str
    path: str
    what: str
    remedy: str


@dataclass(slots=True)
class FileReport:
    """The rows about one file; each step that changes the file appends its own."""

    changes: list[Change] = field(default_factory=list)
    losses: list[MigrationLoss] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """A place in one object of a file; rows about it go to `report`."""

    name: str
    report: FileReport
    path: tuple[Step, ...] = ()

    def below(self, *steps: Step) -> ReportSubject:
        """Return a place inside this one."""
        return ReportSubject(self.name, self.report, (*self.path, *steps))

    def changed(self, code: str, what: str, why: str, *steps: Step) -> None:
        """Record a change at this place or below it."""
        self.report.changes.append(Change(code, self.name, shown_path((*self.path, *steps)), what, why))

    def lost(self, code: str, what: str, remedy: str, *steps: Step) -> None:
        """Record a loss at this place or below it, unless the same row exists already."""
        row = MigrationLoss(code, self.name, shown_path((*self.path, *steps)), what, remedy)
        if row not in self.report.losses:
            self.report.losses.append(row)


def shown_path(path: tuple[Step, ...]) -> str:
    """Return a path as a report shows it.

    >>> shown_path(("spec", "containers", 0, "resources"))
    'spec.containers[0].resources'
    """
    made = ""
    for step in path:
        made += f"[{step}]" if isinstance(step, int) else f".{step}" if made else step
    return made
