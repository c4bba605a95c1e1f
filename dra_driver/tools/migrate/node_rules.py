"""Node selectors and required node affinities of a pod, moved into selectors of its claim if devices publish the facts.

In: a pod's spec, changed in place, and the kinds of device that it asks for. Out: expressions for each kind. What
devices don't publish stays on the pod, and so does an affinity of several terms that can't be taken apart without
changing which nodes match; both are reported. Preferred affinities stay, because claims express no preference.

Source: Kubernetes API core/v1 NodeSelector: terms are alternatives, the expressions of a term must all hold, and a term
without any matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.tools.migrate.labels import DOMAIN, IN, LabelRequirement, NotExpressible, refined, to_cel
from dra_driver.tools.migrate.report import ReportSubject, Step
from dra_driver.tools.migrate.resources import INSIDE_TEXT, QUOTA, DeviceKind, Known, kind_of, labeller_of

Rows = dict[DeviceKind, list[str]]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WHY = "the claim chooses by the device itself, not by its node's label"
_KEPT = "it stays on the pod and works as long as GPU feature discovery labels the nodes; otherwise take it out"


@dataclass(slots=True)
class _Split:
    """One term of an affinity, split into expressions on devices and what stays on the pod."""

    rules: list[tuple[int, LabelRequirement]] = field(default_factory=list)
    expressions: Rows = field(default_factory=dict)
    rest: list[Any] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    is_unusual: bool = False  # empty, or not shaped as the API defines it


def kind_by_labels(spec: dict[str, Any], kind: DeviceKind) -> DeviceKind:
    """Narrow a kind of device if all alternatives of the node rules agree on a narrower one."""
    fixed = [rule for _, rule in _selector_rules(spec)]
    terms = [[rule for _, rule in _term_rules(term)] for term in _terms(spec)] or [[]]
    found = {refined(kind, fixed + rules) for rules in terms}
    return found.pop() if len(found) == 1 else kind


def move_to_selectors(spec: dict[str, Any], kinds: Iterable[DeviceKind], subject: ReportSubject) -> Rows:
    """Move every rule that can be moved out of the spec, and return the expressions for each kind."""
    rows: Rows = {kind: [] for kind in kinds}
    _selector(spec, rows, subject)
    _affinity(spec, rows, subject)
    _preferred(spec, subject)
    return rows


def gpu_rules(spec: dict[str, Any]) -> list[LabelRequirement]:
    """Return all requirements on the labels of GPU feature discovery."""
    found = [rule for _, rule in _selector_rules(spec)]
    for term in _terms(spec):
        found += [rule for _, rule in _term_rules(term)]
    return found


def _selector_rules(spec: dict[str, Any]) -> list[tuple[str, LabelRequirement]]:
    selector = spec.get("nodeSelector")
    if not isinstance(selector, dict):
        return []
    return [
        (key, LabelRequirement(key, IN, (_word(value),))) for key, value in selector.items() if key.startswith(DOMAIN)
    ]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _selector(spec: dict[str, Any], rows: Rows, subject: ReportSubject) -> None:
    for key, rule in _selector_rules(spec):
        place = subject.below("nodeSelector", key)
        if _moved(rule, rows, place):
            del spec["nodeSelector"][key]
    if spec.get("nodeSelector") == {}:
        del spec["nodeSelector"]


def _moved(rule: LabelRequirement, rows: Rows, place: ReportSubject) -> bool:
    """Translate a requirement for every kind and return True, or report that it stays and return False."""
    translated = {kind: to_cel(rule, kind) for kind in rows}
    for found in translated.values():
        if isinstance(found, NotExpressible):
            _stays(rule, found, place)
            return False
    texts = list(dict.fromkeys(found for found in translated.values() if isinstance(found, str)))
    for kind, found in translated.items():
        if isinstance(found, str) and found and found not in rows[kind]:
            rows[kind].append(found)
    shown = " and ".join(text for text in texts if text)
    what = f"{rule.words} became the selector {shown}" if shown else f"{rule.words} was taken out"
    place.changed("label", what, _WHY if shown else "the claim demands it already")
    return True


def _stays(rule: LabelRequirement, found: NotExpressible, place: ReportSubject) -> None:
    place.lost(found.code, f"{rule.words} can't be asked of a device: {found.why}", _KEPT)


# Required affinities.


def _node_affinity(spec: dict[str, Any]) -> dict[str, Any]:
    affinity = spec.get("affinity")
    found = affinity.get("nodeAffinity") if isinstance(affinity, dict) else None
    return found if isinstance(found, dict) else {}


def _terms(spec: dict[str, Any]) -> list[dict[str, Any]]:
    required = _node_affinity(spec).get(_REQUIRED)
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    return terms if isinstance(terms, list) and all(isinstance(term, dict) for term in terms) else []


def _term_rules(term: dict[str, Any]) -> list[tuple[int, LabelRequirement]]:
    listed = term.get("matchExpressions")
    found = []
    for position, row in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(row, dict) and str(row.get("key") or "").startswith(DOMAIN):
            values = row.get("values") or ()
            words = tuple(map(_word, values)) if isinstance(values, list | tuple) else ()
            found.append((position, LabelRequirement(str(row["key"]), str(row.get("operator") or ""), words)))
    return found


def _affinity(spec: dict[str, Any], rows: Rows, subject: ReportSubject) -> None:
    terms = _terms(spec)
    if not any(_term_rules(term) for term in terms):
        return
    place = subject.below("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    if len(terms) == 1:
        _one_term(terms[0], rows, place.below(0))
    else:
        _alternatives(terms, rows, place)
    terms[:] = [term for term in terms if term != {}]
    _prune(spec)


def _one_term(term: dict[str, Any], rows: Rows, place: ReportSubject) -> None:
    moved = [
        position
        for position, rule in _term_rules(term)
        if _moved(rule, rows, place.below("matchExpressions", position))
    ]
    _remove(term, moved)


def _remove(term: dict[str, Any], positions: list[int]) -> None:
    listed = term.get("matchExpressions")
    if isinstance(listed, list) and positions:
        for position in sorted(positions, reverse=True):
            del listed[position]
        if not listed:
            del term["matchExpressions"]


def _alternatives(terms: list[dict[str, Any]], rows: Rows, place: ReportSubject) -> None:
    """Move alternatives together, and only if what stays is the same in all of them."""
    splits = [_split(term, rows) for term in terms]
    rests = [(split.rest, term.get("matchFields")) for split, term in zip(splits, terms, strict=True)]
    if any(split.is_unusual for split in splits) or any(rest != rests[0] for rest in rests):
        place.lost(
            "affinity-kept",
            f"the alternatives ({_alternatives_words(splits)}) differ in more than devices publish: taking them apart"
            " would change which nodes match",
            "it stays on the pod and works as long as GPU feature discovery labels the nodes; or write one object for"
            " each alternative",
        )
        return
    for kind, found in rows.items():
        joined = [_joined(split.expressions[kind]) for split in splits]
        if all(joined):
            text = " || ".join(f"({one})" for one in dict.fromkeys(joined))
            found.append(text if len(dict.fromkeys(joined)) > 1 else joined[0])
    place.changed("label", f"the alternatives ({_alternatives_words(splits)}) became a selector", _WHY)
    for term, split in zip(terms, splits, strict=True):
        _remove(term, split.moved)
    del terms[1:]


def _alternatives_words(splits: list[_Split]) -> str:
    return "; or ".join(", ".join(rule.words for _, rule in split.rules) or "anything" for split in splits)


def _joined(expressions: list[str]) -> str:
    return " && ".join(f"({one})" if " || " in one and len(expressions) > 1 else one for one in expressions)


def _split(term: dict[str, Any], rows: Rows) -> _Split:
    made = _Split(_term_rules(term), {kind: [] for kind in rows})
    for position, rule in made.rules:
        translated = {kind: to_cel(rule, kind) for kind in rows}
        if any(isinstance(found, NotExpressible) for found in translated.values()):
            continue
        made.moved.append(position)
        for kind, found in translated.items():
            if isinstance(found, str) and found:
                made.expressions[kind].append(found)
    listed = term.get("matchExpressions")
    rows_here = listed if isinstance(listed, list) else []
    made.rest = [row for position, row in enumerate(rows_here) if position not in made.moved]
    made.is_unusual = rows_here != (listed or []) or (not listed and not term.get("matchFields"))
    return made


def _prune(spec: dict[str, Any]) -> None:
    """Remove the mappings that became empty, because an affinity without terms would match no node."""
    affinity = spec["affinity"]
    if not _terms(spec):
        del affinity["nodeAffinity"][_REQUIRED]
    if not affinity["nodeAffinity"]:
        del affinity["nodeAffinity"]
    if not affinity:
        del spec["affinity"]


def _preferred(spec: dict[str, Any], subject: ReportSubject) -> None:
    listed = _node_affinity(spec).get(_PREFERRED)
    for position, row in enumerate(listed if isinstance(listed, list) else []):
        preference = row.get("preference") if isinstance(row, dict) else None
        rules = _term_rules(preference) if isinstance(preference, dict) else []
        if rules:
            subject.lost(
                "preferred-affinity",
                f"the preference for {', '.join(rule.words for _, rule in rules)} can't move:"
                " claims express no preference",
                "it stays on the pod and works as long as GPU feature discovery labels the nodes; a claim with"
                " firstAvailable lists kinds of devices in order of preference",
                "affinity",
                "nodeAffinity",
                _PREFERRED,
                position,
            )


# Leftovers: the names of a device plugin's resources and labels that remain in an object after its migration.

_SKIPPED = {"status", "metadata", "tolerations"}
# Inside a longer text such as a patch, a resource appears as a key or at the end of a JSON pointer, where "/" is "~1".
_RESOURCE = r"(?:gpu|mig-[0-9]+g\.[0-9]+gb)(?:\.shared)?"
_KEY = rf"(?:nvidia\.com/{_RESOURCE}|{INSIDE_TEXT.format(slash='/')})(?=[\"']?[ \t]*:)"
_POINTER = rf"(?:nvidia\.com~1{_RESOURCE}|{INSIDE_TEXT.format(slash='~1')})(?![\w.-])"
_INSIDE = re.compile(f"{_KEY}|{_POINTER}")
_PROGRAM_FIELDS = {"command", "args", "env"}  # their strings are for the program in the container and are not manifests
_NODE_RULES = {"nodeSelector", "nodeAffinity", "topologyKey"}


def report_leftovers(wire: dict[str, Any], names: Known, subject: ReportSubject) -> None:
    """Report every remaining resource or label of a device plugin of which no loss was reported before."""
    known = [row.what for row in subject.report.losses if row.subject == subject.name]
    for key, value in wire.items():
        if key in _SKIPPED:
            continue
        for path, text, is_inside in _mentions(value, (key,), names):
            if not any(text in one for one in known):
                _report(text, path, subject, is_inside=is_inside)


def _mentions(value: Any, path: tuple[Step, ...], names: Known) -> Iterator[tuple[tuple[Step, ...], str, bool]]:
    """Yield each mention: its path, the name, and whether the name is only a part of the text there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _SKIPPED:
                continue
            if isinstance(key, str) and _is_ours(key, path, names):
                yield (*path, key), key, False
            yield from _mentions(inner, (*path, key), names)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _mentions(inner, (*path, number), names)
    elif isinstance(value, str) and _is_ours(value, path, names):
        yield path, value, False
    elif isinstance(value, str) and _PROGRAM_FIELDS.isdisjoint(path) and (found := _INSIDE.search(value)) is not None:
        yield path, found[0].replace("~1", "/"), True


def _is_ours(text: str, path: tuple[Step, ...], names: Known) -> bool:
    if _is_unknown(text, path) or kind_of(text.removeprefix(QUOTA).removeprefix("limits."), names) is not None:
        return True
    is_rule = any(step in _NODE_RULES for step in path)
    return is_rule and _is_named_by_plugins(text)


def _is_named_by_plugins(text: str) -> bool:
    return text.startswith(DOMAIN) or labeller_of(text) is not None


def _is_unknown(text: str, path: tuple[Step, ...]) -> bool:
    """Return whether `text` is a resource of the domain in a container; a known one would have been moved by now."""
    return _is_named_by_plugins(text) and path[-2:-1] == ("resources",) and path[-1] in {"limits", "requests"}


def _report(text: str, path: tuple[Step, ...], subject: ReportSubject, *, is_inside: bool) -> None:
    if subject.name.startswith("LimitRange "):
        code = "limit-range"
        what, remedy = (
            f"{text} is set by a LimitRange: its default is added to every container, even to those with claims",
            "take it out; a ResourceQuota can limit how many devices a namespace may have",
        )
    elif _is_unknown(text, path[:-1]) and kind_of(text) is None:
        code = "unknown-resource"
        what, remedy = (
            f"{text} is not one of the device plugin's own resources",
            "migrate the ConfigMap that defines the name together with this file; nothing to do if it is not a GPU"
            if labeller_of(text) is None
            else "take it out, and ask for the same in the claim's selectors; nothing to do if it is not a GPU",
        )
    else:
        code = "mention"
        what, remedy = _mention(text, path, is_inside=is_inside)
    subject.lost(code, what, remedy, *path)


def _mention(text: str, path: tuple[Step, ...], *, is_inside: bool) -> tuple[str, str]:
    """Return the message about a name that is left where it is, and what can be done about it."""
    if any(step in _NODE_RULES for step in path):
        labeller = labeller_of(text) or "GPU feature discovery"
        return (
            f"{text} still names a label of {labeller}",
            f"it works as long as {labeller} labels the nodes; otherwise take it out",
        )
    if is_inside:
        return (
            f"{text} is named inside a string, which is not migrated",
            "migrate the content of the string separately, then put it back",
        )
    return (
        f"{text} is named here, in a place that the migration does not know",
        "see its controller's documentation: it may take claims, or need the extended resource of a DeviceClass",
    )
