"""YAML as it is written: every value with its place in the text, aliases and merge keys left unresolved.

In: a text. Out: one tree for each document. `value_of` returns the plain value that Kubernetes would read, with aliases
and merge keys resolved, and records for each mapping and list in it the node that it came from. It never changes a
text. JSON counts as YAML. Scalars that YAML 1.1 and 1.2 read differently (`on`, `0777`) stay the text that they are.

Source: YAML 1.2, chapter 7; merge keys: yaml.org/type/merge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.errors import InputError

NESTING_MAX = 200  # levels
VALUES_MAX = 500_000  # values in one document after its aliases are resolved
MERGE = "<<"

_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class Verbatim(str):
    """A plain scalar that some reader would not take for a text; it is written again exactly as it was."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class YamlNode:
    """A value in the text, `text[start:end]`. Aliases refer to it as `anchor`."""

    start: int
    end: int
    anchor: str | None = None


@dataclass(slots=True, eq=False)
class Scalar(YamlNode):
    """A text, number, bool or null. `style` is its quote or block indicator; None for a plain scalar."""

    text: str = ""
    style: str | None = None


@dataclass(slots=True, eq=False)
class Alias(YamlNode):
    """A reference to an anchored node."""

    target: YamlNode = field(default_factory=lambda: YamlNode(0, 0))


@dataclass(slots=True, eq=False)
class Sequence(YamlNode):
    """A list. With `is_flow` it is written in brackets, and its content begins at `inner`."""

    is_flow: bool = False
    inner: int = 0
    items: list[YamlNode] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Mapping(YamlNode):
    """A mapping. With `is_flow` it is written in braces, and its content begins at `inner`."""

    is_flow: bool = False
    inner: int = 0
    pairs: list[tuple[YamlNode, YamlNode]] = field(default_factory=list)

    def own(self) -> dict[str, tuple[YamlNode, YamlNode]]:
        """Return the pairs by key, without the merge key."""
        return {key_of(key): (key, value) for key, value in self.pairs if not is_merge(key)}


@dataclass(frozen=True, slots=True)
class DocumentText:
    """One document: its root, and where it begins and ends in the text."""

    root: YamlNode
    start: int
    end: int


def documents_of(text: str, origin: str) -> list[DocumentText]:
    """Return the documents of a text that are not empty; `origin` names the text in errors.

    Raises: InputError("input.not-yaml"), also for text nested too deeply and for a key that occurs twice in a mapping.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415  (only who migrates pays for it)
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        return list(_NodeBuilder(iter(YAML(pure=True).parse(text)), origin).documents())
    except YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = str(getattr(fault, "problem", None) or " ".join(str(fault).split()))
        raise InputError("not-yaml", f"{origin}{where} is neither YAML nor JSON: {reason}") from fault


class _NodeBuilder:
    """Builds nodes from the events of a parser."""

    def __init__(self, events: Iterator[Any], origin: str) -> None:
        self._events = events
        self._origin = origin
        self._anchors: dict[str, YamlNode] = {}

    def documents(self) -> Iterator[DocumentText]:
        start = 0
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                start = event.end_mark.index
                self._anchors = {}
                root = self._node(next(self._events), 0)
                end = next(self._events).start_mark.index
                if not (isinstance(root, Scalar) and root.text == "" and root.style is None):
                    yield DocumentText(root, start, end)

    def _node(self, event: Any, level: int) -> YamlNode:
        if level > NESTING_MAX:
            raise InputError("not-yaml", f"{self._origin} is nested more than {NESTING_MAX} levels deep")
        kind = type(event).__name__
        start, end = event.start_mark.index, event.end_mark.index
        made: YamlNode
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise InputError("not-yaml", f"{self._origin}: alias *{event.anchor} has no anchor before it")
            return Alias(start, end, None, self._anchors[event.anchor])
        if kind == "ScalarEvent":
            made = Scalar(start, end, event.anchor, event.value, event.style)
        elif kind == "SequenceStartEvent":
            made = self._sequence(event, level)
        else:
            made = self._mapping(event, level)
        if event.anchor is not None:
            self._anchors[event.anchor] = made
        return made

    def _sequence(self, event: Any, level: int) -> Sequence:
        made = Sequence(event.start_mark.index, event.end_mark.index, event.anchor, bool(event.flow_style))
        made.inner = event.end_mark.index
        for inner in self._events:
            if type(inner).__name__ == "SequenceEndEvent":
                made.end = inner.end_mark.index if made.is_flow else made.items[-1].end
                break
            made.items.append(self._node(inner, level + 1))
        return made

    def _mapping(self, event: Any, level: int) -> Mapping:
        made = Mapping(event.start_mark.index, event.end_mark.index, event.anchor, bool(event.flow_style))
        made.inner = event.end_mark.index
        seen = set()
        for inner in self._events:
            if type(inner).__name__ == "MappingEndEvent":
                made.end = inner.end_mark.index if made.is_flow else made.pairs[-1][1].end
                break
            key = self._node(inner, level + 1)
            if isinstance(key, Scalar):
                if key.text in seen and not is_merge(key):
                    where = f"{self._origin}:{inner.start_mark.line + 1}"
                    raise InputError("not-yaml", f"{where}: key {key.text!r} occurs twice in one mapping")
                seen.add(key.text)
            made.pairs.append((key, self._node(next(self._events), level + 1)))
        return made


def is_merge(key: YamlNode) -> bool:
    """Return whether a key is the merge key."""
    return isinstance(key, Scalar) and key.style is None and key.text == MERGE


def key_of(key: YamlNode) -> str:
    """Return the text of a key."""
    return key.text if isinstance(key, Scalar) else "?"


_INT_CHARS = 19  # of an int64, the most that an API object can hold; longer numbers stay text


def scalar_value(node: YamlNode) -> Any:
    """Return the value of a scalar; its text (`Verbatim`) if readers of YAML disagree on the value."""
    if not isinstance(node, Scalar):
        return Verbatim("?")
    if node.style is not None:
        return node.text
    text = node.text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) <= _INT_CHARS else Verbatim(text)
    if _FLOAT.fullmatch(text):
        return float(text) if str(float(text)) == text else Verbatim(text)
    return Verbatim(text) if is_ambiguous(text) else text


_AMBIGUOUS = re.compile(
    r"[-+.0-9][-+.,_:0-9eExXoOa-fA-F]*|(?i:y|n|yes|no|on|off|true|false|null|[-+]?\.(inf|nan))|=|<<|[0-9]{4}-.*"
)


def is_ambiguous(text: str) -> bool:
    """Return whether some reader of YAML would not take this plain scalar for a text."""
    return _AMBIGUOUS.fullmatch(text) is not None


@dataclass(slots=True)
class Origins:
    """The node from which each mapping and list of a value came, by identity, and the number of values made so far."""

    nodes: dict[int, YamlNode] = field(default_factory=dict)
    count: int = 0
    kept: list[Any] = field(
        default_factory=list
    )  # keeps the recorded values alive, since a freed one's id would be reused


def value_of(node: YamlNode, origins: Origins | None = None) -> Any:
    """Return the plain value of a node, with a new copy for each alias.

    `origins`, if given, gains the origin of each mapping and list. Raises: InputError("input.not-yaml") if the aliases
    are circular or make more than `VALUES_MAX` values.
    """
    return _value(node, node, origins if origins is not None else Origins(), ())


def _value(node: YamlNode, place: YamlNode, origins: Origins, within: tuple[int, ...]) -> Any:
    origins.count += 1
    if origins.count > VALUES_MAX:
        raise InputError("not-yaml", f"a document holds more than {VALUES_MAX} values once its aliases are resolved")
    if isinstance(node, Alias):
        if id(node.target) in within:
            raise InputError("not-yaml", "an alias refers to a node that contains it")
        return _value(node.target, place if place is not node else node, origins, within)
    within = (*within, id(node)) if node.anchor else within
    made: Any
    if isinstance(node, Sequence):
        made = [_value(item, item, origins, within) for item in node.items]
    elif isinstance(node, Mapping):
        made = _merged(node, origins, within)
        for key, value in node.pairs:
            if not is_merge(key):
                made[key_of(key)] = _value(value, value, origins, within)
    else:
        return scalar_value(node)
    origins.nodes[id(made)] = place
    origins.kept.append(made)
    return made


def _merged(node: Mapping, origins: Origins, within: tuple[int, ...]) -> dict[str, Any]:
    """Return what the merge key contributes; an earlier source wins."""
    made: dict[str, Any] = {}
    for source in reversed(merge_sources(node)):
        found = _value(source, source, origins, within)
        made.update(found if isinstance(found, dict) else {})
    return made


def merge_sources(node: Mapping) -> list[YamlNode]:
    """Return the nodes to which the merge key refers."""
    found: list[YamlNode] = []
    for key, value in node.pairs:
        if is_merge(key):
            found += value.items if isinstance(value, Sequence) else [value]
    return found
