"""Node selectors: whether a node matches one, and which one an allocation gets.

In: node selectors and nodes as wire dicts. Out: a verdict, or a merged selector. Pure.

Source: Kubernetes component-helpers nodeaffinity (terms are ORed, an empty term matches nothing); the allocator's own
merge of the selectors of all used slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dra_driver.allocation.rules import AllocatorError, Category
from dra_driver.base.wire import Wire

_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}


def matches_selector(selector: Wire, node: Wire) -> bool:
    """Return whether a node matches a NodeSelector.

    Raises:
        AllocatorError: The selector can't be parsed.
    """
    metadata = node.get("metadata") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    name = metadata.get("name") or ""
    terms = [t for t in selector.get("nodeSelectorTerms") or [] if t.get("matchExpressions") or t.get("matchFields")]
    for term in terms:
        _check(term)
    return any(_matches_term(term, labels, name) for term in terms)


def _matches_term(term: Wire, labels: Mapping[str, str], name: str) -> bool:
    return all(_matches_label(r, labels) for r in term.get("matchExpressions") or []) and (
        not name or all(_matches_field(r, name) for r in term.get("matchFields") or [])
    )


def _matches_label(requirement: Wire, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            number = _whole(value) if value is not None else None
            bound = _whole(values[0])
            if number is None or bound is None:
                return False
            return number > bound if operator == "Gt" else number < bound


def _matches_field(requirement: Wire, name: str) -> bool:
    actual = name if requirement["key"] == "metadata.name" else ""
    wanted = requirement["operator"] == "In"
    return bool((actual == requirement["values"][0]) == wanted)


def _whole(text: str) -> int | None:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _check(term: Wire) -> None:
    for requirement in term.get("matchExpressions") or []:
        operator = requirement.get("operator")
        values: Sequence[str] = requirement.get("values") or ()
        if operator not in _OPERATORS:
            raise _unparsable(requirement)
        if operator in {"In", "NotIn"} and not values:
            raise _unparsable(requirement)
        if operator in {"Exists", "DoesNotExist"} and values:
            raise _unparsable(requirement)
        if operator in {"Gt", "Lt"} and (len(values) != 1 or _whole(values[0]) is None):
            raise _unparsable(requirement)
    for requirement in term.get("matchFields") or []:
        if requirement.get("operator") not in {"In", "NotIn"} or len(requirement.get("values") or ()) != 1:
            raise _unparsable(requirement)


def _unparsable(requirement: Wire) -> AllocatorError:
    text = f"gather pool information: failed to parse node selector requirement {requirement}"
    return AllocatorError(Category.UNSUPPORTED, text)


def only_node(name: str) -> Wire:
    """Return a selector that accepts only one node."""
    requirement = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [requirement]}]}


def merge_selectors(selectors: Iterable[Wire]) -> Wire | None:
    """Join single-term selectors into one term, without repeating requirements.

    Raises:
        AllocatorError: A selector has several terms, which API validation prevents.

    Source: structured allocator, createNodeSelector. Field requirements come first, then expressions.
    """
    merged: dict[str, list[Wire]] = {"matchFields": [], "matchExpressions": []}
    for selector in selectors:
        terms: Sequence[Wire] = selector.get("nodeSelectorTerms") or []
        if len(terms) > 1:
            text = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            raise AllocatorError(Category.UNSUPPORTED, text)
        for term in terms:
            for kind, into in merged.items():
                for requirement in term.get(kind) or []:
                    if not any(_same(requirement, held) for held in into):
                        into.append(requirement)
    term = {kind: requirements for kind, requirements in merged.items() if requirements}
    return {"nodeSelectorTerms": [term]} if term else None


def _same(one: Wire, other: Wire) -> bool:
    return (
        one["key"] == other["key"]
        and one["operator"] == other["operator"]
        and set(one.get("values") or ()) == set(other.get("values") or ())
    )
