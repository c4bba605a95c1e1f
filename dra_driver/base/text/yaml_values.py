"""YAML of any size as plain values, for files of Kubernetes objects.

In: a text. Out: its documents as dicts, lists and scalars, as YAML 1.1's safe loaders make them, except that dates stay
text and that a key must not occur twice in a mapping. The values are built from the parser's events: nothing recurses,
there is no tree of nodes beside the values, and equal scalars are kept once. There is a limit to the values that
aliases and merges can make of a small text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import yaml

from dra_driver.base.errors import InputError

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


# Document: one YAML file as plain values, read strictly.

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml: the same values, ten times as slowly
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

MAX_SIZE = 1 << 20  # bytes
DOCUMENT_MAX_NESTING = 50  # levels
STANDARD_INPUT = Path("/dev/stdin")


class _Loader(_SafeLoader):
    """A YAML loader with the few scalar types that such files need.

    It recurses, and its C version crashes the process if the nesting is too deep, so `_check_depth` is called first.
    """

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - the name and type are PyYAML's

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, but refuse a field that is given twice, of which YAML would silently use the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if not isinstance(name, str):
                raise yaml.constructor.ConstructorError(None, None, "a field name must be a string", key.start_mark)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"field {name!r} is given twice", key.start_mark)
            seen.add(name)
        made: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return made


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|)\Z"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)\Z"), ["t", "f"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"(0|-?[1-9][0-9]{0,18})\Z"), list("-0123456789"))


def read_document(path: Path, lines: dict[str, int] | None = None) -> object:
    """Read one YAML file of at most `MAX_SIZE` bytes; `STANDARD_INPUT` can be read again and again.

    `lines`, if given, gains the line of each value, counted from 1, by a path such as `gpus[3].mig`.
    Raises: InputError("input.unreadable", "input.too-large", "input.not-yaml").
    """
    try:
        if path == STANDARD_INPUT:
            text = _read_once(sys.stdin)
        else:
            with path.open("rb") as file:
                text = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise InputError("unreadable", f"{path} can't be read: {error.strerror}") from error
    if len(text) > MAX_SIZE:
        raise InputError("too-large", f"{path} is larger than {MAX_SIZE >> 20} MiB")
    try:
        _check_depth(text)
        if lines is not None and (node := yaml.compose(text, Loader=_Loader)) is not None:
            _record_lines(node, "", lines, set())
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader with fewer types
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else f"{path}"
        reason = getattr(error, "problem", None) or " ".join(str(error).split()) or type(error).__name__
        reason = reason.replace("but found another document", "it has more than one document")
        raise InputError("not-yaml", f"{where} is not YAML that this driver reads: {reason}") from error


@lru_cache(maxsize=1)
def _read_once(stream: TextIO) -> bytes:
    """Return the content of a stream that can't be read twice; it is kept for the next reader."""
    return stream.buffer.read(MAX_SIZE + 1)


def _check_depth(text: bytes) -> None:
    """Refuse deep nesting before the loader sees it; the parser's events show the depth without recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DOCUMENT_MAX_NESTING:
            raise RecursionError(f"nested more than {DOCUMENT_MAX_NESTING} levels deep")


def line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """Return the line of a path, or that of the nearest field around it; None for an empty document."""
    while path not in lines and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)


def _record_lines(node: yaml.Node, path: str, lines: dict[str, int], seen: set[int]) -> None:
    """Record the lines of a node and of everything in it; a node with aliases keeps its first line."""
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at = f"{path}.{key.value}" if path else str(key.value)
            lines[at] = key.start_mark.line + 1
            _record_lines(value, at, lines, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _record_lines(item, f"{path}[{index}]", lines, seen)
