"""The report of `dra-driver migrate`: changes with reasons, losses with remedies, checks.

In: migrated files and checks. Out: lines on standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dra_driver.cli.output import console, print_text
from dra_driver.migrate import Migrated
from dra_driver.migrate.report import MigrationLoss
from dra_driver.model.errors import ExitCode
from dra_driver.views.migration.check import Check
from dra_driver.views.wording import plural

_MAX_SUBJECTS = 3


def print_report(done: Sequence[Migrated], checks: Sequence[Check], *, in_place: bool) -> None:
    """Print the whole report."""
    out = console(stderr=True)
    for one in done:
        _print_file(out, one, in_place=in_place)
    losses = [loss for one in done for loss in one.losses]
    if losses:
        out.print()
        print_text(out, "Please note and check:", style="bold yellow")
        _print_losses(out, losses)
    if checks:
        out.print()
        print_text(out, "Checked:", style="bold")
        for check in checks:
            style = "green" if check.exit_code == ExitCode.OK else "bold red"
            print_text(out, f"{check.template}, request {check.request}: {check.words}", indent=2, style=style)
        if all(check.devices is None for check in checks):
            print_text(
                out,
                "use --fleet PROFILE, --slices FILE or --cluster to evaluate them on devices",
                indent=2,
                style="dim",
            )


def _print_file(out: Any, one: Migrated, *, in_place: bool) -> None:
    if not one.changes:
        print_text(out, f"{one.origin}: nothing to change", style="dim")
        return
    done = ", written" if in_place else ""
    print_text(out, f"{one.origin}: {plural(len(one.changes), 'change')}{done}", style="bold")
    for subject, rows in groupby(one.changes, key=lambda row: row.subject):
        print_text(out, subject, indent=2, style="bold")
        reasons: set[str] = set()
        for row in rows:
            print_text(out, row.what, indent=4)
            if row.why not in reasons:
                print_text(out, f"because {row.why}", indent=6, style="dim")
            reasons.add(row.why)


def _print_losses(out: Any, losses: Sequence[MigrationLoss]) -> None:
    """Print each loss once, with all the objects that it concerns."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for loss in losses:
        grouped.setdefault((loss.code, loss.what, loss.remedy), []).append(loss.subject)
    for (code, what, remedy), subjects in grouped.items():
        names = list(dict.fromkeys(subjects))
        more = len(names) - _MAX_SUBJECTS
        shown = ", ".join(names[:_MAX_SUBJECTS]) + (f" and {more} more" if more > 0 else "")
        print_text(out, f"{shown}: {what} [{code}]", indent=2)
        print_text(out, remedy, indent=4, style="dim")
