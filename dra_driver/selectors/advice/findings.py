"""Rules that look at the given devices: errors, constant verdicts, names, drivers.

In: a selector and the devices that reach it. Out: findings. A fix is safe if it was evaluated on every device, every
earlier verdict stayed the same, and the error is gone.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.base.versions import Semver
from dra_driver.selectors.advice.mistakes import KnownNames, NamePlace, WrittenExpression, place_mistakes, place_of
from dra_driver.selectors.advice.remedies import version_text
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.grouping import nearest_misses
from dra_driver.selectors.kubernetes import KubernetesEngine, KubernetesSelector
from dra_driver.selectors.parse.tree import (
    Call,
    Comprehension,
    Ident,
    Literal,
    Node,
    Select,
    all_nodes,
    children,
    replaced,
    terms_below,
    text_of,
)
from dra_driver.selectors.reads import unknown_names
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.values import check_cancelled

# The values of lint: the rules by id, the subject of a check, and findings.

RULES: dict[str, str] = {
    "unguarded-attribute": "an attribute is read that some device lacks: scheduling aborts there",
    "runtime-error": "evaluation fails on some device for another reason: scheduling aborts there",
    "missing-driver-guard": "a class does not compare device.driver first",
    "always-true": "every given device matches, so the selector has no effect",
    "always-false": "no given device matches",
    "string-version": "a string is compared with a version, or versions are ordered as strings",
    "quantity-equality": "quantities are compared with == or !=",
    "bad-literal": "a text that quantity() or semver() can't read, or an amount that is enormous",
    "wrong-type": "a text is searched as a list, or a number compared as a text",
    "wrong-case": "a text that devices have in another case only",
    "cost-limit": "the worst-case cost is beyond or close to the API server's limit",
    "refused": "the API server does not accept the expression in a new object",
    "deprecated-name": "a name that its driver no longer publishes",
    "unknown-name": "a name that no given device has",
    "two-drivers": "devices of more than one driver match",
    "unknown-before-launch": "with --autoscaler: what it can't know of a node that it has yet to start",
}


class LintSeverity(enum.StrEnum):
    """How much a finding matters, worst first."""

    ERROR = "error"  # it aborts scheduling, is refused, or can't be true by its types
    WARNING = "warning"  # it is hardly what the author meant
    NOTE = "note"


_WARNINGS = frozenset(
    {
        "missing-driver-guard",
        "always-false",
        "quantity-equality",
        "wrong-case",
        "deprecated-name",
        "unknown-name",
        "two-drivers",
        "unknown-before-launch",
    }
)
_NOTES = frozenset({"always-true"})


def severity_of(rule: str) -> LintSeverity:
    """Return how much the findings of a rule matter, unless one of them says otherwise."""
    return LintSeverity.WARNING if rule in _WARNINGS else LintSeverity.NOTE if rule in _NOTES else LintSeverity.ERROR


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding. `fix` is a whole new expression; `is_safe` says whether it may be applied automatically.

    `start` is the offset of the clause in the expression. `effect` is a sentence about a fix that gives the same
    verdict on every given device. `weight` is the severity, where it is not that of the rule.
    """

    rule: str
    message: str
    clause: str = ""
    fix: str | None = None
    is_safe: bool = False
    effect: str = ""
    start: int = 0
    weight: LintSeverity | None = None

    @property
    def severity(self) -> LintSeverity:
        """How much it matters."""
        return self.weight or severity_of(self.rule)


@dataclass(frozen=True, slots=True)
class LintSubject:
    """One selector to lint.

    `views` are the devices that reach it, one of each kind; `counts` says how many devices each of them stands for.
    `known` caches their names.
    """

    selector: KubernetesSelector
    engine: KubernetesEngine
    views: Sequence[DeviceView]
    counts: Sequence[int]
    in_class: bool = False
    is_first: bool = True
    is_last: bool = True
    known: KnownNames | None = None

    @property
    def names(self) -> KnownNames:
        """The names of the devices."""
        return KnownNames.of(self.views) if self.known is None else self.known

    def written(self) -> WrittenExpression:
        """Return the selector and those names in the form in which rules look for mistakes."""
        return WrittenExpression(self.selector.expression, self.selector.program.root, self.names)

    @property
    def total(self) -> int:
        """The number of devices that reach the selector."""
        return sum(self.counts)


Outcome = bool | str  # a verdict, or the text of an error


def outcomes(selector: KubernetesSelector, views: Sequence[DeviceView]) -> list[Outcome]:
    """Return the outcome of the selector on each device."""
    return [outcome(selector, view) for view in views]


def outcome(selector: KubernetesSelector, view: DeviceView) -> Outcome:
    """Return the outcome of the selector on one device."""
    check_cancelled()
    try:
        return selector.matches_view(view)
    except SelectorRuntimeError as error:
        return error.text


# The rewrites that lint proposes, made in the text: guards before clauses, calls in place of operators.

_STEPS = frozenset({"_[_]"})
_LOGICAL = frozenset({"_&&_", "_||_"})
_LOOSE = frozenset({"_||_", "_?_:_"})


def clauses(root: Node) -> list[Node]:
    """List the clauses below the outermost && and ||, looking through bindings."""
    return terms_below(root, _LOGICAL)


def reads_of(root: Node, name: str) -> list[Node]:
    """List the plain reads of a name in a clause, which can fail with "no such key: name"."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if (type(node) is Select and not node.test and node.field == name) or _reads_key(node, name):
            found.append(node)
        pending.extend(children(node))
    return found


def with_presence_tests(root: Node, expression: str, name: str) -> str | None:
    """Put a presence test before every clause that reads a name; return None where that is impossible."""
    inserts: dict[int, tuple[int, str, bool]] = {}
    for leaf in clauses(root):
        inner = reads_of(leaf, name)
        if not inner:
            continue
        if any(_is_local(access, leaf) for access in inner) or not hasattr(leaf, "start"):
            return None
        guards = list(dict.fromkeys(_guard(access, expression) for access in inner))
        if "" in guards:
            return None
        loose = type(leaf) is Call and leaf.function in _LOOSE
        inserts[leaf.start] = (leaf.end, " && ".join(guards), loose)
    if not inserts:
        return None
    text = expression
    for start in sorted(inserts, reverse=True):
        end, guard, loose = inserts[start]
        clause = expression[start:end]
        text = f"{text[:start]}{guard} && {f'({clause})' if loose else clause}{text[end:]}"
    return text


def _reads_key(node: Node, name: str) -> bool:
    return (
        type(node) is Call
        and node.function in _STEPS
        and type(node.args[1]) is Literal
        and type(node.args[1].value) is str
        and node.args[1].value == name
    )


def _guard(access: Node, expression: str) -> str:
    if not hasattr(access, "start"):
        return ""
    if type(access) is Select:
        return f"has({text_of(access, expression)})"
    assert type(access) is Call  # noqa: S101  (as `reads_of` returns)
    held, key = access.args
    if not hasattr(held, "start") or not hasattr(key, "start"):
        return ""
    return f"{text_of(key, expression)} in {text_of(held, expression)}"


def _is_local(access: Node, leaf: Node) -> bool:
    """Return whether an access depends on a variable that exists only inside the clause."""
    bound: set[str] = set()
    for node in all_nodes(leaf):
        if type(node) is Comprehension:
            bound |= {node.var, node.var2, node.accu}
    return any(type(node) is Ident and node.name in bound for node in all_nodes(access))


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
        leaf = next((leaf for leaf in clauses(root) if reads_of(leaf, name)), root)
        message = (
            f"{lacking} of {subject.total} devices lack {name}: on them the expression fails, which aborts scheduling"
        )
        start = min((access.start for access in reads_of(leaf, name) if hasattr(access, "start")), default=0)
        clause = text_of(leaf, expression)
        yield LintFinding("unguarded-attribute", message, clause, fix, is_safe=fix is not None, start=start)


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
    tested = {f"{read.domain}/{read.name}" for read in subject.selector.read_set.guarded}
    for unknown in unknown_names(subject.selector.read_set, subject.views):
        mistake = mistakes.get(unknown.name) if not unknown.is_published else None
        fix = mistake.text if mistake and recompiled(subject, mistake.text) else None
        clause, start = (mistake.clause, mistake.start) if mistake else ("", start_of(subject, unknown.name))
        # A name that exists elsewhere, or that the expression itself tests for, is hardly a slip.
        weight = LintSeverity.NOTE if unknown.is_published or unknown.name in tested else None
        yield LintFinding("unknown-name", unknown.sentence, clause, fix, start=start, weight=weight)


def start_of(subject: LintSubject, name: str) -> int:
    """Return the offset of the first read of a domain/name, or of a domain; 0 if it is computed."""
    domain, _, last = name.rpartition("/")
    for node in all_nodes(subject.selector.program.root):
        place = place_of(node)
        if place and hasattr(node, "start") and (place.domain, place.name) in {(domain, last), (last, place.name)}:
            return int(node.start)
    return 0


def _drivers(subject: LintSubject, found: list[Outcome]) -> Iterator[LintFinding]:
    if not subject.is_last:
        return
    drivers = dict.fromkeys(view.driver for view, one in zip(subject.views, found, strict=True) if one is True)
    if len(drivers) > 1:
        yield LintFinding(
            "two-drivers", f"it matches devices of {' and '.join(drivers)}: their drivers prepare them differently"
        )


# Versions that are compared with strings: which operands are versions, and what the comparison comes to.

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
        yield LintFinding("string-version", message, clause, fix if better else None, is_safe=is_safe, start=node.start)
    elif looks_so and node.function not in _EQUALITY:
        message = 'strings are ordered character by character ("10.0" < "9.0"): compare versions with semver()'
        yield LintFinding("string-version", message, clause, start=node.start, weight=LintSeverity.WARNING)


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
