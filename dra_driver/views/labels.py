"""Label selectors as kubectl's -l accepts them: equality, inequality, existence and sets.

In: text such as "app=train,tier in (a, b),!old". Out: a predicate over objects. Source: Kubernetes, "Labels and
Selectors": requirements are joined by "and"; `!=` and `notin` are also true if the label is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dra_driver.model.errors import UsageError
from dra_driver.model.wire import Wire

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_SPLIT = re.compile(r",(?![^()]*\))")
_COMPARED = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(\s*([^()]*?)\s*\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_MAX = 4096  # characters of a selector

Labels = dict[str, str]


def label_selector(text: str) -> Callable[[Wire], bool]:
    """Return a predicate that is true for objects with the labels that a selector requires; for all if it is "".

    Raises: UsageError.
    """
    if len(text) > _MAX:
        raise UsageError("labels", f"-l is longer than {_MAX} characters")
    tests = [_requirement(part.strip()) for part in _SPLIT.split(text)] if text.strip() else []

    def matches(wire: Wire) -> bool:
        labels = wire["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _requirement(text: str) -> Callable[[Labels], bool]:
    if found := _COMPARED.fullmatch(text):
        key, sign, value = found.groups()
        return (lambda labels: labels.get(key) != value) if sign == "!=" else (lambda labels: labels.get(key) == value)
    if found := _SET.fullmatch(text):
        key, word, listed = found.groups()
        values = {one.strip() for one in listed.split(",")}
        if all(re.fullmatch(_VALUE, one) for one in values):
            return lambda labels: (key in labels and labels[key] in values) is (word == "in")
    if found := _EXISTS.fullmatch(text):
        is_absent, key = found.groups()
        return lambda labels: (key in labels) is not bool(is_absent)
    hint = "such as app=train,tier in (a, b),!old"
    raise UsageError("labels", f"-l {text[:80]!r} is not a requirement on a label", hint=hint)
