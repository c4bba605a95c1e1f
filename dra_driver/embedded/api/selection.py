"""Selection: the field selectors and label selectors of list and watch requests.

In: the query texts. Out: a predicate over objects. It supports equality, inequality and existence; set-based label
selectors are refused rather than misread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.embedded.api.kinds import ApiKind
from dra_driver.embedded.api_rules.refusals import bad_request
from dra_driver.model.wire import Wire

_TERM = re.compile(r"(?P<key>[A-Za-z0-9_./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[A-Za-z0-9_./-]*))?")


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """The objects of a kind that a request selects."""

    namespace: str
    tests: tuple[Callable[[Wire], bool], ...]

    def matches(self, wire: Wire) -> bool:
        """Return whether the object is selected."""
        if self.namespace and wire["metadata"].get("namespace") != self.namespace:
            return False
        return all(test(wire) for test in self.tests)


def select(kind: ApiKind, namespace: str, fields: str, labels: str) -> ObjectSelection:
    """Parse both selectors. Raises: ApiRefusal 400 for a field that is not selectable or an unknown term."""
    tests = [_field_test(kind, term) for term in _terms(fields)]
    tests += [_label_test(term) for term in _terms(labels)]
    return ObjectSelection(namespace, tuple(tests))


def _terms(text: str) -> list[str]:
    return [term.strip() for term in text.split(",") if term.strip()]


def _field_test(kind: ApiKind, term: str) -> Callable[[Wire], bool]:
    match = _TERM.fullmatch(term)
    if not match or not match["op"]:
        raise bad_request(f"invalid field selector {term!r}")
    field, wanted, is_equal = match["key"], match["value"], match["op"] != "!="
    if field not in ("metadata.name", "metadata.namespace", *kind.selectable):
        raise bad_request(f'field label not supported for {kind.kind}: "{field}"')
    *outer, last = field.split(".")  # a field of the object, or of a mapping in it
    if not outer:
        return lambda wire: (wire.get(last, "") == wanted) is is_equal
    return lambda wire: ((wire.get(outer[0]) or {}).get(last, "") == wanted) is is_equal


def _label_test(term: str) -> Callable[[Wire], bool]:
    absent = term.startswith("!")
    match = _TERM.fullmatch(term.removeprefix("!"))
    if not match or (absent and match["op"]):
        raise bad_request(f"unable to parse requirement: {term!r} (set-based selectors are not served here)")
    key, op, wanted = match["key"], match["op"], match["value"]
    if not op:
        return lambda wire: (key in (wire["metadata"].get("labels") or {})) is not absent
    return lambda wire: ((wire["metadata"].get("labels") or {}).get(key) == wanted) is (op != "!=")
