"""YAML as it is written: every value with its place in the text, aliases and merge keys left unresolved.

In: a text. Out: one tree for each document. It never changes a text. JSON counts as YAML.

Source: YAML 1.2, chapter 7; merge keys: yaml.org/type/merge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import InputError

MAX_NESTING = 200  # levels
MERGE = "<<"


@dataclass(slots=True, eq=False)
class YamlNode:
    """A value in the text, `text[start:end]`. Aliases refer to it as `anchor`."""

    start: int
    end: int
    anchor: str | None = None


@dataclass(slots=True, eq=False)
class Scalar(YamlNode):
    """A text, number, bool or null.

    `style` is its quote or block indicator, None for a plain scalar; `tag` is the type that is written before it.
    """

    text: str = ""
    style: str | None = None
    tag: str | None = None


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
    """One document: its root, and where it begins and ends in the text; its directives and "---" begin at `head`."""

    root: YamlNode
    head: int
    start: int
    end: int


def documents_of(text: str, origin: str) -> list[DocumentText]:
    """Return the documents of a text that are not empty; `origin` names the text in errors.

    Raises: InputError("input.not-yaml"), also for text nested too deeply and for a key that occurs twice in a mapping.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415  (a slow import, rarely needed)
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        return list(_NodeBuilder(text, iter(YAML(typ="safe", pure=True).parse(text)), origin).documents())
    except YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = str(getattr(fault, "problem", None) or " ".join(str(fault).split()))
        raise InputError("not-yaml", f"{origin}{where} is neither YAML nor JSON: {reason}") from fault


class _NodeBuilder:
    """Builds nodes from the events of a parser."""

    def __init__(self, text: str, events: Iterator[Any], origin: str) -> None:
        self._text = text
        self._events = events
        self._origin = origin
        self._anchors: dict[str, YamlNode] = {}

    def documents(self) -> Iterator[DocumentText]:
        head = start = 0
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                head, start = event.start_mark.index, event.end_mark.index
                self._anchors = {}
                root = self._node(next(self._events), 0)
                end = next(self._events).start_mark.index
                if not (isinstance(root, Scalar) and root.text == "" and root.style is None):
                    yield DocumentText(root, head, start, end)

    def _node(self, event: Any, level: int) -> YamlNode:
        if level > MAX_NESTING:
            raise InputError("not-yaml", f"{self._origin} is nested more than {MAX_NESTING} levels deep")
        kind = type(event).__name__
        start, end = event.start_mark.index, event.end_mark.index
        made: YamlNode
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise InputError("not-yaml", f"{self._origin}: alias *{event.anchor} has no anchor before it")
            return Alias(start, end, None, self._anchors[event.anchor])
        if kind == "ScalarEvent":
            made = Scalar(start, end, event.anchor, event.value, event.style, event.tag)
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
            before = made.items[-1].end if made.items else made.start
            made.items.append(self._put(self._node(inner, level + 1), before, "-"))
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
            value = self._node(next(self._events), level + 1)
            made.pairs.append((key, self._put(value, key.end, ":")))
        return made

    def _put(self, node: YamlNode, before: int, sign: str) -> YamlNode:
        """Move an empty value, whose place depends on the parser, to directly after its dash or colon."""
        if node.start == node.end:
            between = _COMMENT.sub(lambda comment: " " * len(comment[0]), self._text[before : node.start])
            node.start = node.end = before + between.rfind(sign) + 1
        return node


_COMMENT = re.compile(r"(?<=\s)#[^\n]*")


def is_merge(key: YamlNode) -> bool:
    """Return whether a key is the merge key."""
    return isinstance(key, Scalar) and key.style is None and key.text == MERGE


def key_of(key: YamlNode) -> str:
    """Return the text of a key."""
    return key.text if isinstance(key, Scalar) else "?"


def merge_sources(node: Mapping) -> list[YamlNode]:
    """Return the nodes to which the merge key refers."""
    found: list[YamlNode] = []
    for key, value in node.pairs:
        if is_merge(key):
            found += value.items if isinstance(value, Sequence) else [value]
    return found
