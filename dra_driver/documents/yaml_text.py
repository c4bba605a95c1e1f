"""The text of one object in YAML, taken apart at the strings that may differ in another object of the same kind.

In: a text that holds one document, or one entry of a list. Out: its open places, found by the parser itself. Only
strings that can be read in one way are left open: those in quotes without escapes, and plain words that no resolver of
YAML 1.1 takes for a number, a date, a truth value or null.

Source: YAML 1.1, "Tag Repository for YAML"; the events' marks are PyYAML's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from dra_driver.documents.json_pattern import OpenString, OpenText, Path

_QUOTED = {'"': re.compile(r"[ !#-\[\]-~]*"), "'": re.compile(r"[ -&(-~]*")}
# A word that begins with a letter and has more than letters, or more letters than `false`; and UUIDs.
_WORD = re.compile(
    r"[A-Za-z](?=[A-Za-z]*[0-9_./-]|[A-Za-z]{5})[A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
_NULL = re.compile(r"~|null|Null|NULL|")
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _NotComparableError(Exception):
    """The text has anchors, aliases, tags or nulls, so it can't be compared with the texts of other objects."""


def open_yaml(text: str, may_be_open: Callable[[Path], bool]) -> OpenText | None:
    """Return the text of an object, or of a list's only entry, taken apart; None if it can't be compared with others.

    `may_be_open` returns whether the string at a path in the object may be open. Raises: yaml.YAMLError.
    """
    try:
        return OpenText(text, [place for place in _places(text) if may_be_open(place[0])])
    except _NotComparableError:
        return None


def _places(text: str) -> Iterator[OpenString]:
    steps: list[Any] = []  # the number of the next entry, or the key whose value is next, None before a key
    skipped = 0
    for event in yaml.parse(text, Loader=_PARSER):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise _NotComparableError
        if isinstance(event, yaml.MappingStartEvent):
            steps.append(None)
        elif isinstance(event, yaml.SequenceStartEvent):
            skipped += not steps  # the list around an entry
            steps.append(0)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            steps.pop()
            _pass_value(steps)
        elif isinstance(event, yaml.ScalarEvent):
            if steps and steps[-1] is None:
                steps[-1] = event.value
                continue
            if place := _place(text, event, (*steps[skipped:],)):
                yield place
            _pass_value(steps)


def _pass_value(steps: list[Any]) -> None:
    """Move to the step after a value."""
    if steps:
        steps[-1] = steps[-1] + 1 if isinstance(steps[-1], int) else None


def _place(text: str, event: Any, path: Path) -> OpenString | None:
    """Return the place of a scalar if it is a string that can be replaced; otherwise None."""
    start, end = event.start_mark.index, event.end_mark.index
    if event.implicit[0] and _NULL.fullmatch(event.value):
        raise _NotComparableError
    if not event.implicit[0]:
        plain = _QUOTED.get(text[start : start + 1])
        start, end = start + 1, end - 1
    else:
        plain = _WORD
    if plain is None or text[start:end] != event.value or not plain.fullmatch(event.value):
        return None
    return path, start, end, plain
