"""The findings of lint about the selectors that a user gave, and a better expression for each.

In: evaluated queries. Out: `LintedSelector`s, and the document. It changes no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.model.wire import Wire
from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.lint.autoscalers import Autoscaler
from dra_driver.selectors.lint.findings import LintFinding, LintSubject
from dra_driver.selectors.lint.lint import apply_safe_fixes, lint
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.verdicts.documents import compiled_document, inputs_document
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.query_verdicts import CompiledSelector, QueryVerdicts

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
        "selectors": [_selector_document(one, is_mended=one.place in fixed) for one in found],
    }
    return OutputDocument(DocumentKind.SELECTOR_FINDINGS, content)


def _selector_document(one: LintedSelector, *, is_mended: bool) -> Wire:
    return {
        "source": one.compiled.written.label,
        "file": one.compiled.written.document.origin if one.compiled.written.document else None,
        "expression": one.compiled.written.expression,
        "better": one.better,
        "mended": is_mended,
        "findings": [
            {
                "rule": finding.rule,
                "message": finding.message,
                "clause": finding.clause,
                "fix": finding.fix,
                "safe": finding.is_safe,
                "effect": finding.effect,
            }
            for finding in one.findings
        ],
    }
