"""Lint: find selectors that compile but cause trouble, and propose better ones.

In: a compiled selector and the devices that reach it. Out: findings, each with the id of its rule, a sentence and,
where there is one, a better expression. It reads nothing and changes nothing. A proposed expression is called safe
only after it was evaluated on every given device.

The rules are described in docs/selectors.md, under the ids of `RULES`.
"""

from __future__ import annotations

from dataclasses import replace

from dra_driver.selectors.lint.autoscalers import Autoscaler, autoscaler_findings
from dra_driver.selectors.lint.findings import RULES, LintFinding, LintSubject, outcomes
from dra_driver.selectors.lint.fleet import fleet_findings, recompiled
from dra_driver.selectors.lint.text import text_findings

_MAX_ROUNDS = 16
_FIRST = "missing-driver-guard"  # once this fix is applied, other guards are often unnecessary


def lint(
    subject: LintSubject, disabled: frozenset[str] = frozenset(), autoscaler: Autoscaler | None = None
) -> list[LintFinding]:
    """Apply all rules to one selector and return the findings, worst first; with an autoscaler, its rule too."""
    subject = replace(subject, known=subject.names)
    found = [*fleet_findings(subject), *text_findings(subject)]
    if autoscaler is not None:
        found += autoscaler_findings(subject, autoscaler)
    order = list(RULES)
    kept = [_with_effect(subject, finding) for finding in found if finding.rule not in disabled]
    return sorted(kept, key=lambda finding: order.index(finding.rule))


def _with_effect(subject: LintSubject, finding: LintFinding) -> LintFinding:
    """Return the finding, with an effect if its fix gives the same verdict on all given devices."""
    if finding.fix is None or not subject.views:
        return finding
    better = recompiled(subject, finding.fix)
    found = set(outcomes(better, subject.views)) if better else set()
    if True not in found:
        return replace(finding, effect="no given device matches then")
    if found == {True}:
        return replace(finding, effect="every given device matches then")
    return finding


def apply_safe_fixes(subject: LintSubject, disabled: frozenset[str] = frozenset()) -> str | None:
    """Apply safe fixes until none is left; return the better expression, or None if there was nothing to fix."""
    now = subject = replace(subject, known=subject.names)
    for _ in range(_MAX_ROUNDS):
        safe = [one for one in lint(now, disabled) if one.is_safe]
        safe.sort(key=lambda one: one.rule != _FIRST)
        fix = safe[0].fix if safe else None
        if fix is None or fix == now.selector.expression:
            break
        environment = now.selector.declarations.environment
        now = replace(now, selector=now.engine.compile(fix, environment=environment))
    return None if now is subject else now.selector.expression
