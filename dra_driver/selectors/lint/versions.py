"""Versions that are compared with strings: which operands are versions, and what the comparison comes to.

In: a selector, its devices, and a comparison with a string. Out: findings.

Source: cel-go: a string is never equal to a value of another type; Kubernetes' versions refuse strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from dra_driver.model.semver import Semver
from dra_driver.selectors.lint.findings import LintFinding, LintSubject, outcomes
from dra_driver.selectors.lint.fleet import keeps_verdicts, recompiled
from dra_driver.selectors.remedies.literal_texts import version_text
from dra_driver.selectors.syntax.excerpts import replaced, text_of
from dra_driver.selectors.syntax.nodes import Call, Literal, Node
from dra_driver.selectors.values.cancellation import check_cancelled
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD

OPERATORS = {"_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_EQUALITY = frozenset({"_==_", "_!=_"})
_VERSION = re.compile(r"v?\d+(\.\d+){1,3}([-+][0-9A-Za-z.+-]*)?")


def versions_among(subject: LintSubject, nodes: list[Node]) -> set[Node]:
    """Return the nodes that are versions on every device where they have a value. Each device is traced once."""
    found: set[Node] = set()
    others: set[Node] = set()
    for view in subject.views if nodes else ():
        check_cancelled()
        trace = subject.selector.trace(view)
        for node in nodes:
            value = trace.get(node)
            if value is not None and not isinstance(value, Exception):
                (found if isinstance(value, Semver) else others).add(node)
    return found - others


def version_findings(
    subject: LintSubject, node: Call, value: Node, literal: Literal, *, is_version: bool
) -> Iterator[LintFinding]:
    """Report a version attribute that is compared with a string, and version-like strings that are ordered."""
    expression, operator = subject.selector.expression, OPERATORS[node.function]
    looks_so = _VERSION.fullmatch(literal.value) is not None
    clause = text_of(node, expression)
    if is_version:
        effect = _effect(subject, operator, version_first=node.args[0] is value)
        call = _compare(value, literal, operator, node.args[0] is value, expression)
        fix = replaced(expression, node, call) if call else None
        better = recompiled(subject, fix) if fix else None
        is_safe = (
            better is not None
            and operator != "!="
            and keeps_verdicts(outcomes(subject.selector, subject.views), outcomes(better, subject.views))
        )
        message = f"the attribute is a version: comparing it with a string {effect}"
        yield LintFinding("string-version", message, clause, fix if better else None, is_safe=is_safe)
    elif looks_so and node.function not in _EQUALITY:
        message = 'strings are ordered character by character ("10.0" < "9.0"): compare versions with semver()'
        yield LintFinding("string-version", message, clause)


def _effect(subject: LintSubject, operator: str, *, version_first: bool) -> str:
    """Return what comparing a version with a string comes to: a string never equals a version, a version refuses it."""
    if operator == "!=" or (operator == "==" and not version_first):
        return f"is always {'true' if operator == '!=' else 'false'}"
    found = outcomes(subject.selector, subject.views)
    aborts = any(isinstance(one, str) and one.startswith(NO_SUCH_OVERLOAD) for one in found)
    return "fails, which aborts scheduling" if aborts else "fails"


def _compare(value: Node, literal: Literal, operator: str, in_order: bool, expression: str) -> str | None:
    if not hasattr(value, "start"):
        return None
    version = version_text(literal.value)
    if version is None:
        return None
    wanted = f"semver({json.dumps(version)})"
    if not in_order:
        operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    return f"{text_of(value, expression)}.compareTo({wanted}) {operator} 0"
