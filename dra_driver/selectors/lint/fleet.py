"""Rules that look at the given devices: errors, constant verdicts, names, drivers.

In: a selector and the devices that reach it. Out: findings. A fix is safe if it was evaluated on every device, every
earlier verdict stayed the same, and the error is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.lint.findings import LintFinding, LintSubject, Outcome, outcomes
from dra_driver.selectors.lint.guards import clauses, reads_of, with_presence_tests
from dra_driver.selectors.near_misses import nearest_misses
from dra_driver.selectors.remedies.names import NamePlace
from dra_driver.selectors.remedies.places import place_mistakes
from dra_driver.selectors.suggestions import unknown_names
from dra_driver.selectors.syntax.excerpts import text_of

_MISSING = re.compile(r"no such key: (\S+)")
_MAX_GUARDS = 32


def fleet_findings(subject: LintSubject) -> Iterator[LintFinding]:
    """Apply the rules; without devices there are no findings."""
    if not subject.views:
        return
    found = outcomes(subject.selector, subject.views)
    yield from _missing(subject, found)
    yield from _failures(subject, found)
    yield from _constant(subject, found)
    yield from _names(subject)
    yield from _drivers(subject, found)


def _missing(subject: LintSubject, found: list[Outcome]) -> Iterator[LintFinding]:
    """Report attributes that are read although some device lacks them, with one fix for all of them."""
    names = list(
        dict.fromkeys(match[1] for one in found if isinstance(one, str) and (match := _MISSING.fullmatch(one)))
    )
    if not names:
        return
    fix = guard_missing_names(subject)
    root, expression = subject.selector.program.root, subject.selector.expression
    for name in names:
        lacking = _count(subject, found, f"no such key: {name}")
        clause = next((text_of(leaf, expression) for leaf in clauses(root) if reads_of(leaf, name)), "")
        message = (
            f"{lacking} of {subject.total} devices lack {name}: on them the expression fails, which aborts scheduling"
        )
        yield LintFinding("unguarded-attribute", message, clause, fix, is_safe=fix is not None)


def guard_missing_names(subject: LintSubject) -> str | None:
    """Guard names until no device fails because one is missing.

    Returns the new expression, or None if guards do not help or would change a verdict. A name that no device has is
    not guarded, because the expression would never be true; no fix is returned if devices still fail for another
    reason.
    """
    selector = subject.selector
    unknown = _unknown_names(subject)
    before = outcomes(selector, subject.views)
    for _ in range(_MAX_GUARDS):
        now = outcomes(selector, subject.views)
        missing = next((m[1] for one in now if isinstance(one, str) and (m := _MISSING.fullmatch(one))), None)
        if missing is None:
            is_fixed = all(isinstance(one, bool) for one in now)
            return selector.expression if is_fixed and keeps_verdicts(before, now) else None
        text = None if missing in unknown else with_presence_tests(selector.program.root, selector.expression, missing)
        better = recompiled(subject, text) if text is not None else None
        if better is None:
            return None
        selector = better
    return None


def _unknown_names(subject: LintSubject) -> set[str]:
    """Return the names that the expression reads and no device has."""
    names = subject.names
    return {
        read.name
        for read in subject.selector.read_set.reads
        if read.domain and read.name and NamePlace(read.field, read.domain, read.name) not in names
    }


def keeps_verdicts(before: list[Outcome], after: list[Outcome]) -> bool:
    """Return whether every verdict stayed the same; an error may have become a verdict."""
    return all(isinstance(old, str) or old is new for old, new in zip(before, after, strict=True))


def recompiled(subject: LintSubject, text: str) -> KubernetesSelector | None:
    """Compile a proposed expression; return None if that fails, or if the API server would newly refuse it."""
    try:
        better = subject.engine.compile(text, environment=subject.selector.declarations.environment)
    except SelectorCompileError:
        return None
    return better if better.admissible or not subject.selector.admissible else None


def _failures(subject: LintSubject, found: list[Outcome]) -> Iterator[LintFinding]:
    others = dict.fromkeys(one for one in found if isinstance(one, str) and not _MISSING.fullmatch(one))
    for text in others:
        count = _count(subject, found, text)
        yield LintFinding("runtime-error", f"on {count} of {subject.total} devices the expression fails: {text}")


def _count(subject: LintSubject, found: list[Outcome], text: str) -> int:
    return sum(count for count, one in zip(subject.counts, found, strict=True) if one == text)


def _constant(subject: LintSubject, found: list[Outcome]) -> Iterator[LintFinding]:
    if all(one is False for one in found):
        near = nearest_misses(subject.selector, subject.views)
        but = f"; nearest miss: {near[0].reason}" if near else ""
        yield LintFinding("always-false", f"none of the {subject.total} devices that reach it matches{but}")
    elif all(one is True for one in found) and not (subject.in_class and _reads_driver(subject)):
        yield LintFinding("always-true", f"all {subject.total} devices that reach it match: it could be left out here")


def _reads_driver(subject: LintSubject) -> bool:
    return any(read.field == "driver" for read in subject.selector.read_set.reads)


def _names(subject: LintSubject) -> Iterator[LintFinding]:
    found = place_mistakes(subject.written())
    mistakes = {one.about: one for one in found}
    for unknown in unknown_names(subject.selector.read_set, subject.views):
        mistake = mistakes.get(unknown.name)
        fix = mistake.text if mistake and recompiled(subject, mistake.text) else None
        yield LintFinding("unknown-name", unknown.sentence, mistake.clause if mistake else "", fix)


def _drivers(subject: LintSubject, found: list[Outcome]) -> Iterator[LintFinding]:
    if not subject.is_last:
        return
    drivers = dict.fromkeys(view.driver for view, one in zip(subject.views, found, strict=True) if one is True)
    if len(drivers) > 1:
        yield LintFinding(
            "two-drivers", f"it matches devices of {' and '.join(drivers)}: their drivers prepare them differently"
        )
