"""Why devices match or do not: the explanation for each group of equal devices, and the document.

In: evaluated queries. Out: explanations with the value of each part of an expression, in the order of the selectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from dra_driver.model.errors import UsageError
from dra_driver.model.wire import Wire
from dra_driver.selectors.explain import Explanation, ExpressionPart, explain
from dra_driver.views.envelope import DocumentKind, OutputDocument
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.verdicts.documents import compiled_document, inputs_document
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.misses import miss_document, misses
from dra_driver.views.verdicts.query_verdicts import ABORT, MATCH, NO_MATCH, QueryVerdicts, VerdictGroup


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
