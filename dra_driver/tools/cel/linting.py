"""The findings of lint about the selectors that a user gave, and a better expression for each.

In: evaluated queries. Out: `LintedSelector`s, and the document. It changes no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

import dra_driver
from dra_driver.base.errors import InputError, UsageError
from dra_driver.base.wire import Wire
from dra_driver.selectors.advice.findings import RULES, LintFinding, LintSeverity, LintSubject, severity_of
from dra_driver.selectors.advice.lint import Autoscaler, apply_safe_fixes, lint
from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.explain import Explanation, ExpressionPart, explain
from dra_driver.tools.cel.verdicts import (
    ABORT,
    MATCH,
    NO_MATCH,
    CompiledSelector,
    QueryVerdicts,
    VerdictGroup,
    compiled_document,
    error_offset,
    inputs_document,
    miss_document,
    misses,
    position_document,
)
from dra_driver.tools.world.access import DocumentKind, OutputDocument
from dra_driver.tools.world.documents import Step, load_text
from dra_driver.tools.world.fleet import Fleet
from dra_driver.tools.world.positions import Position
from dra_driver.tools.world.queries import SelectorInputs, WrittenSelector

SelectorPlace = tuple[str, int, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True)
class LintedSelector:
    """One selector with its findings; `better` is its expression after all safe fixes."""

    compiled: CompiledSelector
    subject: LintSubject
    findings: tuple[LintFinding, ...]
    better: str | None

    @property
    def place(self) -> SelectorPlace:
        """Where the selector was found."""
        document = self.compiled.written.document
        return (
            (document.origin, document.number, self.compiled.written.steps)
            if document
            else ("", 0, (self.compiled.written.label,))
        )


def lint_queries(
    judged: list[QueryVerdicts], given: SelectorInputs, disabled: frozenset[str], autoscaler: Autoscaler | None = None
) -> Iterator[LintedSelector]:
    """Lint the selectors that the user gave, each once."""
    seen: set[Any] = set()
    engine = given.engine()
    for query in judged:
        reached = list(query.groups)
        own = [one for one in query.compiled if one.written.document is not None or not one.written.in_class]
        for position, one in enumerate(query.compiled):
            written, selector = one.written, one.selector
            if selector is None:
                break
            where = (written.document.origin, written.document.number) if written.document else None
            key = where, written.label, written.path, () if written.in_class else query.query.request
            following = query.compiled[position + 1 :]
            if one in own and key not in seen:
                seen.add(key)
                subject = LintSubject(
                    selector,
                    engine,
                    [group.view for group in reached],
                    [len(group.devices) for group in reached],
                    in_class=written.in_class,
                    is_first=position == 0,
                    is_last=not following or (written.in_class and not following[0].written.in_class),
                )
                found = tuple(lint(subject, disabled, autoscaler))
                yield LintedSelector(one, subject, found, apply_safe_fixes(subject, disabled))
            reached = [group for group in reached if _holds(one, group.view)]


def _holds(one: CompiledSelector, view: Any) -> bool:
    assert one.selector is not None  # noqa: S101  (checked by the caller)
    try:
        return one.selector.matches_view(view)
    except SelectorRuntimeError:
        return False


def lint_rewritten(
    one: LintedSelector, fixed: frozenset[SelectorPlace], disabled: frozenset[str], autoscaler: Autoscaler | None = None
) -> LintedSelector:
    """Lint a selector again if its place is in `fixed`, because it was rewritten there."""
    if one.better is None or one.place not in fixed:
        return one
    selector = one.subject.engine.compile(one.better, environment=one.subject.selector.declarations.environment)
    subject = replace(one.subject, selector=selector)
    return replace(one, subject=subject, findings=tuple(lint(subject, disabled, autoscaler)))


def findings_document(
    judged: Sequence[QueryVerdicts],
    found: Sequence[LintedSelector],
    given: SelectorInputs,
    fixed: frozenset[SelectorPlace],
) -> OutputDocument:
    """Return the document of all selectors; `fixed` lists the places that were rewritten."""
    content = {
        **inputs_document(given),
        "compileErrors": [
            compiled_document(one, query, given) for query in judged for one in query.compiled if one.error is not None
        ],
        "selectors": [_selector_document(one, given, is_mended=one.place in fixed) for one in found],
    }
    return OutputDocument(DocumentKind.SELECTOR_FINDINGS, content)


def _selector_document(one: LintedSelector, given: SelectorInputs, *, is_mended: bool) -> Wire:
    written = one.compiled.written
    return {
        "source": written.label,
        "file": written.document.origin if written.document else None,
        "position": position_document(given.position(written)),
        "expression": written.expression,
        "better": one.better,
        "mended": is_mended,
        "findings": [finding_document(finding, written, given) for finding in one.findings],
    }


def finding_document(finding: LintFinding, written: WrittenSelector, given: SelectorInputs) -> Wire:
    """Return the document of one finding about an expression."""
    return {
        "rule": finding.rule,
        "severity": str(finding.severity),
        "position": position_document(given.position(written, finding.start)),
        "message": finding.message,
        "clause": finding.clause,
        "fix": finding.fix,
        "safe": finding.is_safe,
        "effect": finding.effect,
    }


# Reports for programs that show findings beside the lines of files: GitHub's annotations, and SARIF.

DOES_NOT_COMPILE = "does-not-compile"
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_GITHUB = {LintSeverity.ERROR: "error", LintSeverity.WARNING: "warning", LintSeverity.NOTE: "notice"}


@dataclass(frozen=True, slots=True)
class SelectorFault:
    """A finding or a compile error of one selector; `start` is the offset of what it is about, the `clause`."""

    rule: str
    severity: LintSeverity
    message: str
    compiled: CompiledSelector
    start: int
    clause: str = ""
    fix: str | None = None


def selector_faults(judged: Sequence[QueryVerdicts], found: Sequence[LintedSelector]) -> Iterator[SelectorFault]:
    """Yield all faults, compile errors first; a class that several requests name has its error for each of them."""
    for one in (one for query in judged for one in query.compiled if one.error is not None):
        assert one.error is not None  # noqa: S101  (as selected above)
        lines = [line for line in one.error.text.splitlines() if not line.startswith(" | ")]
        yield SelectorFault(DOES_NOT_COMPILE, LintSeverity.ERROR, "\n".join(lines), one, error_offset(one))
    for linted in found:
        for finding in linted.findings:
            start, clause = finding.start, finding.clause
            yield SelectorFault(
                finding.rule, finding.severity, finding.message, linted.compiled, start, clause, finding.fix
            )


@dataclass(frozen=True, slots=True)
class ReportedFault:
    """A finding or a compile error, at its place; `file` is "" for -e and for objects of a cluster."""

    rule: str
    severity: LintSeverity
    message: str
    file: str
    position: Position | None


def reported_faults(
    judged: Sequence[QueryVerdicts], found: Sequence[LintedSelector], given: SelectorInputs
) -> list[ReportedFault]:
    """Return all faults in the order of files and lines."""
    faults: dict[ReportedFault, None] = {}
    for fault in selector_faults(judged, found):
        written = fault.compiled.written
        file = written.document.origin if written.document else ""
        advice = f"\nbetter: {fault.fix}" if fault.fix else ""
        position = given.position(written, fault.start)
        faults[ReportedFault(fault.rule, fault.severity, fault.message + advice, file, position)] = None
    return sorted(faults, key=lambda fault: (fault.file, fault.position.line if fault.position else 0))


def github_line(fault: ReportedFault) -> str:
    """Return the workflow command with which GitHub shows a fault beside its line."""
    place = f"file={_github_text(fault.file, is_value=True)}," if fault.file else ""
    if fault.file and fault.position:
        place += f"line={fault.position.line},col={fault.position.column},"
    return f"::{_GITHUB[fault.severity]} {place}title={fault.rule}::{_github_text(fault.message)}"


def _github_text(text: str, *, is_value: bool = False) -> str:
    for character in "%\r\n" + (":," if is_value else ""):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def sarif_document(faults: Sequence[ReportedFault]) -> Wire:
    """Return the faults as a log of SARIF 2.1.0."""
    rules = {DOES_NOT_COMPILE: "the expression does not compile", **RULES}
    ids = list(rules)
    driver = {
        "name": "dra-driver cel lint",
        "version": dra_driver.__version__,
        "rules": [
            {
                "id": rule,
                "shortDescription": {"text": text},
                "defaultConfiguration": {"level": str(severity_of(rule))},
            }
            for rule, text in rules.items()
        ],
    }
    results = [
        {
            "ruleId": fault.rule,
            "ruleIndex": ids.index(fault.rule),
            "level": str(fault.severity),
            "message": {"text": fault.message},
            "locations": _sarif_places(fault),
        }
        for fault in faults
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def _sarif_places(fault: ReportedFault) -> list[Wire]:
    if not fault.file:
        return []
    scheme = "file://" if fault.file.startswith("/") else ""  # a relative reference must not begin with a slash
    place: Wire = {"artifactLocation": {"uri": scheme + quote(fault.file)}}
    if fault.position:
        place["region"] = {"startLine": fault.position.line, "startColumn": fault.position.column}
    return [{"physicalLocation": place}]


# Replace expressions inside a YAML or JSON file, without changing the rest of its text, comments included.

_NEWLINE = "\n"
_PLAIN = re.compile(r"[A-Za-z0-9(/][^\n\t]*[^\s:]")


@dataclass(frozen=True, slots=True)
class ExpressionChange:
    """One expression to replace: document `number` of the file, the path in it, the new text."""

    number: int
    path: tuple[Step, ...]
    expression: str


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A part of a text, and what to write instead."""

    start: int
    end: int
    new: str


def with_new_expressions(text: str, origin: str, changes: Sequence[ExpressionChange]) -> str | None:
    """Return the text with the expressions replaced, or None if that can't be done safely."""
    edits = expression_edits(text, origin, changes)
    return None if edits is None else _edited(text, edits)


def expression_edits(text: str, origin: str, changes: Sequence[ExpressionChange]) -> list[TextEdit] | None:
    """Return the edits that replace the expressions, or None if that can't be done safely. Raises: InputError."""
    import yaml

    # The caller has already read this text, so its nesting is bounded.
    roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    edits = []
    for change in changes:
        node = _scalar(roots[change.number], change.path)
        if node is None:
            return None
        edits.append(TextEdit(node.start_mark.index, node.end_mark.index, _written(text, node, change.expression)))
    return edits if _reads_back(text, _edited(text, edits), origin, changes) else None


def _edited(text: str, edits: Sequence[TextEdit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def _scalar(node: Any, path: Sequence[Step]) -> Any:
    """Return the scalar at a path, or None if an alias or a merge key hides it."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(node.value, list) or step >= len(node.value):
                return None
            node = node.value[step]
            continue
        pairs = node.value if isinstance(node.value, list) else []
        node = next((value for key, value in pairs if getattr(key, "value", None) == step), None)
        if node is None:
            return None
    return node if isinstance(node.value, str) else None


def _written(text: str, node: Any, expression: str) -> str:
    """Write an expression in the YAML style of the one it replaces."""
    if node.style in {"|", ">"}:
        start = text.rfind("\n", 0, node.start_mark.index) + 1
        margin = " " * (len(text[start:]) - len(text[start:].lstrip(" ")) + 2)
        first = text.find("\n", node.start_mark.index)
        body = text[first + 1 : node.end_mark.index]
        if (found := re.search(r"^( +)\S", body, re.MULTILINE)) is not None:
            margin = found[1]
        lines = "\n".join(margin + line if line else "" for line in expression.rstrip("\n").split("\n"))
        return f"|{'' if expression.endswith(_NEWLINE) else '-'}\n{lines}\n"
    if node.style == '"':
        return json.dumps(expression, ensure_ascii=False)
    if node.style is None and _PLAIN.fullmatch(expression) and ": " not in expression and " #" not in expression:
        return expression
    if "\n" in expression:
        return json.dumps(expression, ensure_ascii=False)
    return "'" + expression.replace("'", "''") + "'"


def _reads_back(before: str, after: str, origin: str, changes: Sequence[ExpressionChange]) -> bool:
    """Return whether the new text holds the old objects with the new expressions, and no other change."""
    wanted = deepcopy(load_text(before, origin))
    for change in changes:
        holder = wanted[change.number]
        for step in change.path[:-1]:
            holder = holder[step]
        holder[change.path[-1]] = change.expression
    try:
        return load_text(after, origin) == wanted
    except InputError:
        return False


# Why devices match or do not: the explanation for each group of equal devices, and the document.


def narrowed(given: SelectorInputs, names: tuple[str, ...]) -> SelectorInputs:
    """Return the inputs with only the named devices. Raises: UsageError for a name that no device has."""
    known = {device.name for device in given.fleet.devices}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise UsageError(
                "no-device",
                f"--device {name}: no device has this name",
                hint=f"did you mean {near[0]}?" if near else "",
            )
    kept = tuple(device for device in given.fleet.devices if device.name in names)
    fleet = Fleet(kept, given.fleet.sources, given.fleet.notes)
    return SelectorInputs(fleet, given.queries, given.kubernetes, given.gates, given.environment)


def explanations_of(judged: QueryVerdicts, group: VerdictGroup) -> list[tuple[int, Explanation]]:
    """Explain the selectors in order, up to and including the one that decides."""
    last = len(judged.compiled) if group.verdict.step is None else group.verdict.step + 1
    found = []
    for number, one in enumerate(judged.compiled[:last]):
        assert one.selector is not None  # noqa: S101  (checked by the caller)
        found.append((number, explain(one.selector, group.view)))
    return found


def explanations_document(judged: Sequence[QueryVerdicts], given: SelectorInputs) -> OutputDocument:
    """Return the document of all queries."""
    content = {**inputs_document(given), "queries": [_document(one, given) for one in judged]}
    return OutputDocument(DocumentKind.SELECTOR_EXPLANATIONS, content)


def _document(judged: QueryVerdicts, given: SelectorInputs) -> Wire:
    return {
        "query": judged.query.title,
        "usedBy": judged.query.users,
        "selectors": [compiled_document(one, judged, given) for one in judged.compiled],
        "counts": {kind: judged.count(kind) for kind in (MATCH, NO_MATCH, ABORT)},
        "groups": [_group(judged, group) for group in judged.groups],
        "nearestMisses": [miss_document(miss) for miss in misses(judged)],
    }


def _group(judged: QueryVerdicts, group: VerdictGroup) -> Wire:
    return {
        "verdict": group.verdict.kind,
        "selector": group.verdict.step,
        "error": group.verdict.error,
        "devices": [
            {"node": one.node, "driver": one.driver, "pool": one.pool, "device": one.name} for one in group.devices
        ],
        "explanations": [
            {
                "selector": number,
                "match": explanation.match,
                "error": explanation.error,
                "deciding": explanation.deciding.text if explanation.deciding else None,
                "tree": _tree(explanation.tree) if explanation.tree else None,
            }
            for number, explanation in explanations_of(judged, group)
        ],
    }


def _tree(part: ExpressionPart) -> Wire:
    return {
        "text": part.text,
        "value": part.value,
        "type": part.type,
        "error": part.error,
        "decides": part.decides,
        "parts": [_tree(inner) for inner in part.parts],
    }
