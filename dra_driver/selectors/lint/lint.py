"""What compiles but hurts.

In: a compiled selector and the devices that reach it. Out: findings, each with the id of its rule, a sentence, and
where it can be told a better expression. It reads nothing and changes nothing; a proposed expression was evaluated on
every device at hand before it is called safe.

The rules are described in docs/selectors.md, under the ids of `RULES`.
"""

from __future__ import annotations

from dataclasses import replace

from dra_driver.selectors.lint.findings import RULES, LintFinding, LintSubject
from dra_driver.selectors.lint.fleet import fleet_findings
from dra_driver.selectors.lint.text import text_findings

_MOST_ROUNDS = 16
_FIRST = "missing-driver-guard"  # after it, other guards are often not needed any more


def lint(subject: LintSubject, disabled: frozenset[str] = frozenset()) -> list[LintFinding]:
    """Apply all rules to one selector, worst first."""
    found = [*fleet_findings(subject), *text_findings(subject)]
    order = list(RULES)
    kept = [finding for finding in found if finding.rule not in disabled]
    return sorted(kept, key=lambda finding: order.index(finding.rule))


def mend(subject: LintSubject, disabled: frozenset[str] = frozenset()) -> str | None:
    """Apply safe fixes until none is left; give the better expression, None if there is nothing to mend."""
    now = subject
    for _ in range(_MOST_ROUNDS):
        safe = [one for one in lint(now, disabled) if one.is_safe]
        safe.sort(key=lambda one: one.rule != _FIRST)
        fix = safe[0].fix if safe else None
        if fix is None or fix == now.selector.expression:
            break
        environment = now.selector.declarations.environment
        now = replace(now, selector=now.engine.compile(fix, environment=environment))
    return None if now is subject else now.selector.expression
