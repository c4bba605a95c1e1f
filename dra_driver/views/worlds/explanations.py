"""Explanations of subjects: judged one after the other, their exit status, and the document.

In: a world whose rules are settled, and subjects. Out: each subject with its explanation; None where it is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from dra_driver.allocation.explaining.explanation import AllocationExplanation
from dra_driver.model.errors import ExitCode
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.subjects import Subject

MOST_WRITTEN = 256  # kinds of nodes that a document follows device by device

Explained = tuple[Subject, AllocationExplanation | None]


def exit_code(judged: Sequence[Explained]) -> ExitCode:
    """Return the exit status for all subjects: an error that ends scheduling goes before all else."""
    if any(explanation is not None and explanation.aborts for _, explanation in judged):
        return ExitCode.ABORTS_SCHEDULING
    is_well = all(subject.ok if explanation is None else explanation.ok for subject, explanation in judged)
    return ExitCode.OK if is_well else ExitCode.NO_MATCH


def explanations_document(judged: Sequence[Explained], rules: AppliedRules, *, is_one: bool) -> OutputDocument:
    """Return the document of all subjects; with `is_one`, and one subject, that of the subject itself."""
    documents = [_document(subject, explanation, rules) for subject, explanation in judged]
    if is_one and len(documents) == 1:
        return OutputDocument(DocumentKind.EXPLANATION, documents[0])
    return OutputDocument(DocumentKind.EXPLANATIONS, {"explanations": documents})


def _document(subject: Subject, explanation: AllocationExplanation | None, rules: AppliedRules) -> Wire:
    """Write down all kinds of nodes, the first of them with all their devices."""
    gates = {name: {"on": on, "how": rules.how[name]} for name, on in sorted(rules.gates.items())}
    head: Wire = {"subject": subject.name, "notes": list(subject.notes), "gates": gates}
    if explanation is None:
        ended: Wire = {"ok": subject.ok, "sentence": subject.settled, "nodes": [], "aborts": False}
        return {**ended, "kubernetes": rules.kubernetes, "exact": True, **head}
    nodes = [
        asdict(node if place < MOST_WRITTEN else replace(node, funnels=()))
        for place, node in enumerate(explanation.nodes)
    ]
    return {
        "ok": explanation.ok,
        "sentence": explanation.sentence,
        "nodes": nodes,
        "aborts": explanation.aborts,
        "kubernetes": explanation.kubernetes,
        "exact": explanation.exact,
        **head,
    }
