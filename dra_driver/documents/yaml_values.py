"""YAML of any size as plain values, for files of Kubernetes objects.

In: a text. Out: its documents as dicts, lists and scalars, as YAML 1.1's safe loaders make them, except that dates stay
text and that a key must not occur twice in a mapping. The values are built from the parser's events: nothing recurses,
there is no tree of nodes beside the values, and equal scalars are kept once. There is a limit to the values that
aliases and merges can make of a small text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import yaml

MAX_NESTING = 200  # levels
_MAX_ALIASED = 1_000_000  # values that aliases and merges may add to a document
_MAX_NUMBER = 4300  # characters, as Python's own limit for decimal integers
_MAX_KNOWN = 65_536
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null"))
_MERGE = object()
_NO_KEY = object()

Each = Callable[[Any], None]


class TooDeepError(Exception):
    """A text is nested more than `MAX_NESTING` levels deep."""


class _Open:
    """A list or mapping that is not finished yet."""

    __slots__ = ("anchor", "began", "key", "merges", "value")

    def __init__(self, value: Any, anchor: str | None, began: int) -> None:
        self.value = value
        self.anchor = anchor
        self.began = began
        self.key: Any = _NO_KEY
        self.merges: list[dict[Any, Any]] = []


class _ValueBuilder:
    """Makes the values of one text."""

    def __init__(self, each: Each | None) -> None:
        self._each = each
        self._plain: dict[str, Any] = {}
        self._loader: Any = yaml.SafeLoader("")
        self._begin()

    def _begin(self) -> None:
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = self._aliased = 0
        self._root: Any = None

    def documents(self, events: Iterator[Any]) -> Iterator[Any]:
        """Build the documents of a stream of events."""
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._count += 1
                value = self._scalar(event)
                if event.anchor:
                    self._anchors[event.anchor] = value, 1
                self._put(value, event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._open(event, is_mapping=kind is yaml.MappingStartEvent)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentEndEvent:
                root = self._root
                self._begin()
                if self._each is not None:
                    self._each(root)
                yield root

    def _open(self, event: Any, *, is_mapping: bool) -> None:
        self._count += 1
        wanted = _TAG + ("map" if is_mapping else "seq")
        if event.tag not in {None, "!", wanted}:
            raise _fault(f"could not determine a constructor for the tag {event.tag!r}", event)
        if len(self._stack) >= MAX_NESTING:
            raise TooDeepError
        self._stack.append(_Open({} if is_mapping else [], event.anchor, self._count))

    def _close(self, event: Any) -> None:
        done = self._stack.pop()
        if done.merges:
            self._merge(done, event)
        if done.anchor:
            self._anchors[done.anchor] = done.value, self._count - done.began + 1
        if self._each is not None and len(self._stack) == 2 and type(self._stack[-1].value) is list:
            self._each(done.value)
        self._put(done.value, event)

    def _alias(self, event: Any) -> None:
        found = self._anchors.get(event.anchor)
        if found is None:
            raise _fault(f"the alias {event.anchor!r} is undefined, or is part of what it refers to", event)
        self._add(found[1], event)
        self._put(found[0], event)

    def _add(self, count: int, event: Any) -> None:
        self._count += count
        self._aliased += count
        if self._aliased > _MAX_ALIASED:
            raise _fault(f"aliases make more than {_MAX_ALIASED:,} values of this document", event)

    def _put(self, value: Any, event: Any) -> None:
        if not self._stack:
            self._root = None if value is _MERGE else value
            return
        top = self._stack[-1]
        if type(top.value) is list:
            top.value.append("<<" if value is _MERGE else value)
        elif top.key is _NO_KEY:
            if type(value) in {dict, list}:
                raise _fault("found unhashable key", event)
            if value in top.value:
                raise _fault(f"key {value!r} occurs twice in one mapping", event)
            top.key = value
        elif top.key is _MERGE:
            self._add_merge(top, value, event)
            top.key = _NO_KEY
        else:
            top.value[top.key] = "<<" if value is _MERGE else value
            top.key = _NO_KEY

    def _add_merge(self, top: _Open, value: Any, event: Any) -> None:
        rows = list(reversed(value)) if type(value) is list else [value]
        if not all(type(row) is dict for row in rows):
            raise _fault("expected a mapping or list of mappings for merging", event)
        top.merges += rows

    def _merge(self, done: _Open, event: Any) -> None:
        """Put the merged pairs before those of the mapping itself, which take precedence."""
        own = dict(done.value)
        done.value.clear()
        for row in done.merges:
            self._add(len(row), event)
            done.value.update(row)
        done.value.update(own)

    def _scalar(self, event: Any) -> Any:
        text, tag = event.value, event.tag
        if tag is None and event.implicit[0]:
            known = self._plain.get(text, _NO_KEY)
            if known is _NO_KEY:
                if len(self._plain) >= _MAX_KNOWN:
                    self._plain.clear()
                tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))
                known = self._plain[text] = self._construct(tag, text, event)
            return known
        return text if tag in {None, "!"} else self._construct(tag, text, event)

    def _construct(self, tag: str, text: str, event: Any) -> Any:
        if tag in {_TAG + "str", _TAG + "timestamp", _TAG + "value"}:
            return text
        if tag == _TAG + "merge":
            return _MERGE
        if tag not in _SCALARS:
            raise _fault(f"could not determine a constructor for the tag {tag!r}", event)
        if len(text) > _MAX_NUMBER:
            raise _fault(f"a number of {len(text):,} characters", event)
        try:
            return self._loader.yaml_constructors[tag](self._loader, yaml.ScalarNode(tag, text))
        except (ValueError, KeyError, OverflowError, IndexError) as fault:
            raise _fault(f"{text[:40]!r} is not a valid {tag.removeprefix(_TAG)}", event) from fault


def load_yaml(text: str, each: Each | None = None) -> Iterator[Any]:
    """Read the documents of a text. `each` is called with every document, and with the entries of a List before that.

    Raises: yaml.YAMLError, TooDeepError.
    """
    parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return _ValueBuilder(each).documents(yaml.parse(text, Loader=parser))


def _fault(problem: str, event: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, event.start_mark)
