"""The exit status and the document for explained subjects.

In: subjects with their explanations, which are None for subjects that already have an answer, and the rules that apply.
Out: an exit status, and a document.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.allocation.explaining.explanation import AllocationExplanation, NodeExplanation
from dra_driver.model.errors import ExitCode
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.subjects import ExplainedSubject
from dra_driver.views.worlds.unknown import is_certain
from dra_driver.views.worlds.world import World

MAX_WRITTEN = 256  # kinds of nodes that a document describes device by device

Explained = tuple[ExplainedSubject, AllocationExplanation | None]


def exit_code(judged: Sequence[Explained], world: World) -> ExitCode:
    """Return the exit status for all subjects: an error that ends scheduling takes precedence, and then "not known"."""
    if any(explanation is not None and explanation.aborts for _, explanation in judged):
        return ExitCode.ABORTS_SCHEDULING
    if not all(
        subject.is_known if explanation is None else is_certain(world, ok=explanation.ok)
        for subject, explanation in judged
    ):
        return ExitCode.ENVIRONMENT
    if not judged and world.unseen:
        return ExitCode.ENVIRONMENT  # there may be subjects that can't be seen
    is_ok = all(subject.ok if explanation is None else explanation.ok for subject, explanation in judged)
    return ExitCode.OK if is_ok else ExitCode.NO_MATCH


def explanations_document(judged: Sequence[Explained], rules: AppliedRules, *, is_one: bool) -> OutputDocument:
    """Return the document of all subjects; with `is_one` and a single subject, the document of that subject."""
    documents = [_document(subject, explanation, rules) for subject, explanation in judged]
    if is_one and len(documents) == 1:
        return OutputDocument(DocumentKind.EXPLANATION, documents[0])
    return OutputDocument(DocumentKind.EXPLANATIONS, {"explanations": documents})


def _document(subject: ExplainedSubject, explanation: AllocationExplanation | None, rules: AppliedRules) -> Wire:
    """Return the document of a subject. Only the first `MAX_WRITTEN` kinds of nodes are described by their devices."""
    gates = {name: {"on": on, "how": rules.how[name]} for name, on in sorted(rules.gates.items())}
    head: Wire = {"subject": _subject(subject), "notes": list(subject.notes), "gates": gates}
    if explanation is None:
        ended: Wire = {"ok": subject.ok, "sentence": subject.answer, "nodes": [], "aborts": False}
        return {**ended, "kubernetes": rules.kubernetes, "exact": True, **head}
    nodes = [_node(node, with_funnels=place < MAX_WRITTEN) for place, node in enumerate(explanation.nodes)]
    return {
        "ok": explanation.ok,
        "sentence": explanation.sentence,
        "nodes": nodes,
        "aborts": explanation.aborts,
        "kubernetes": explanation.kubernetes,
        "exact": explanation.exact,
        **head,
    }


def _subject(subject: ExplainedSubject) -> Wire:
    """Return the kind of a subject in lower case, its namespace and its name."""
    kind, _, name = subject.name.partition(" ")
    if subject.pod is not None:
        metadata = subject.pod["metadata"]
        return {"kind": "pod", "namespace": metadata.get("namespace") or "default", "name": metadata["name"]}
    namespace, _, own = name.rpartition("/")
    return {"kind": kind, "namespace": namespace or None, "name": own}


def _node(node: NodeExplanation, *, with_funnels: bool) -> Wire:
    """Return the document of a node.

    It contains whether the search took too long, but not how many placements were tried.
    """
    outcome = node.outcome
    return {
        "node": node.node,
        "like": list(node.like),
        "ok": node.ok,
        "sentence": node.sentence,
        "notes": list(node.notes),
        "skipped": node.skipped or None,
        "outcome": {
            "category": str(outcome.category),
            "results": outcome.results,
            "error": outcome.error,
            "othersPossible": outcome.others_possible,
            "timesOut": outcome.times_out,
        }
        if outcome is not None
        else None,
        "funnels": plain(node.funnels) if with_funnels else [],
    }
