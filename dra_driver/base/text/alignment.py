"""The alignment of a document's nodes with its changed value: which parts stay, and what each anchor will hold.

In: nodes, the changed value, and the origin of each part of it. Out: pairs of old nodes and new values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.text.written import Alias, Mapping, Scalar, Sequence, YamlNode, is_merge, key_of, merge_sources

# The plain value of a written node: what Kubernetes would read, with aliases and merge keys resolved.

MAX_VALUES = 500_000  # values in one document after its aliases are resolved

_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class Verbatim(str):
    """A plain scalar on whose type readers of YAML disagree; it is written back exactly as it was."""

    __slots__ = ()


_TYPES = "tag:yaml.org,2002:"
_TEXT_TAGS = {"!", f"{_TYPES}str"}
_TAGS = {f"{_TYPES}{name}" for name in ("int", "float", "bool", "null")}  # a quoted scalar with any other tag is a text
_INT_CHARS = 19  # digits of an int64, the largest number in an API object; longer numbers stay text


def scalar_value(node: YamlNode) -> Any:
    """Return the value of a scalar; its text (`Verbatim`) if readers of YAML disagree on the value."""
    if not isinstance(node, Scalar):
        return Verbatim("?")
    text = node.text
    if node.tag in _TEXT_TAGS or (node.style is not None and node.tag not in _TAGS):
        return text
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
    are circular or make more than `MAX_VALUES` values.
    """
    return _value(node, node, origins if origins is not None else Origins(), ())


def _value(node: YamlNode, place: YamlNode, origins: Origins, within: tuple[int, ...]) -> Any:
    origins.count += 1
    if origins.count > MAX_VALUES:
        raise InputError("not-yaml", f"a document holds more than {MAX_VALUES} values once its aliases are resolved")
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


def is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal, including the types of scalars and the order of keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(is_same(one, new[key]) for key, one in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_same, old, new))
    if isinstance(old, str) and isinstance(new, str):
        return str(old) == str(new) and isinstance(old, Verbatim) == isinstance(new, Verbatim)
    return type(old) is type(new) and bool(old == new)


REMOVED = object()  # the value of a part that is removed


@dataclass(frozen=True, slots=True)
class PairChanges:
    """How the pairs of a mapping change.

    `kept` says for each pair whether it stays, and `inherited` is what the merge key contributes. `added` holds new
    pairs by the index of the old pair that they follow (-1: before the first). `renamed` holds the new key and scalar
    of each removed pair that is overwritten in place.
    """

    kept: list[bool]
    inherited: dict[str, Any]
    added: dict[int, dict[str, Any]]
    renamed: dict[int, tuple[str, Any]] = field(default_factory=dict)


class Alignment:
    """The nodes of a document, matched with the parts of its changed value.

    Nodes whose ids are in `whole`, and nodes that can't be changed part by part, are rewritten as a whole.
    """

    def __init__(self, origins: Origins, root: YamlNode, new: Any, whole: frozenset[int]) -> None:
        self._origins = origins
        self._whole = whole
        self._anchored: dict[int, Any] = {}
        self._record(root, new)

    def _record(self, node: YamlNode, new: Any) -> None:
        """Record what each anchored node that stays will hold."""
        if node.anchor:
            self._anchored[id(node)] = new
        if isinstance(node, Mapping) and self.changes_pairs(node, new):
            for key, (_, value) in node.own().items():
                if key in new:
                    self._record(value, new[key])
        elif isinstance(node, Sequence) and self.changes_items(node, new):
            for item, value in self.rows(node, new):
                if item is not None and value is not REMOVED:
                    self._record(item, value)

    def held(self, alias: Alias) -> Any:
        """Return what the anchor of an alias will hold; REMOVED if it does not stay."""
        return self._anchored.get(id(alias.target), REMOVED)

    def changes_pairs(self, node: Mapping, new: Any) -> bool:
        """Return whether a mapping can be changed pair by pair."""
        if not isinstance(new, dict) or not (new or node.is_flow) or id(node) in self._whole:
            return False
        changes = self.pairs(node, new)
        keys = [*changes.inherited, *changes.added.get(-1, {})]
        for index, (key, _) in enumerate(node.pairs):
            keys += [changes.renamed[index][0]] if index in changes.renamed else []
            keys += [key_of(key)] if changes.kept[index] and not is_merge(key) else []
            keys += changes.added.get(index, {})
        return list(dict.fromkeys(keys)) == list(new) and (node.is_flow or any(changes.kept) or bool(changes.renamed))

    def changes_items(self, node: Sequence, new: Any) -> bool:
        """Return whether a list can be changed item by item."""
        if not isinstance(new, list) or not (new or node.is_flow) or id(node) in self._whole:
            return False
        if any(not isinstance(one, dict | list) for one in new) and len(new) != len(node.items):
            return False
        sources = [source for source in self._sources(node, new) if source is not None]
        return bool(sources or node.is_flow) and _in_order(sources, node.items)

    def rows(self, node: Sequence, new: list[Any]) -> Iterator[tuple[YamlNode | None, Any]]:
        """Pair old items with new values, in the new order: a removed item with REMOVED, None with a new value."""
        sources = self._sources(node, new)
        kept = {id(source) for source in sources if source is not None}
        waiting = list(node.items)
        for value, source in zip(new, sources, strict=True):
            while source is not None and waiting[0] is not source:
                yield waiting.pop(0), REMOVED
            if source is not None:
                waiting.pop(0)
            yield source, value
        yield from ((item, REMOVED) for item in waiting if id(item) not in kept)

    def _sources(self, node: Sequence, new: list[Any]) -> list[YamlNode | None]:
        """Return the old item of each new value, or None; scalars have one only if the list keeps its length."""
        items = {id(item): item for item in node.items}
        made: list[YamlNode | None] = []
        for position, value in enumerate(new):
            old = node.items[position] if len(new) == len(node.items) else None
            if isinstance(value, dict | list):
                made.append(items.get(id(self._origins.nodes.get(id(value)))))
            else:
                made.append(None if isinstance(old, Mapping | Sequence) else old)
        return made

    def merged(self, node: Mapping) -> dict[str, Any]:
        """Return what the merge key of a mapping will contribute; REMOVED for a value that may not stay."""
        made: dict[str, Any] = {}
        for source in reversed(merge_sources(node)):
            held = self.held(source) if isinstance(source, Alias) else value_of(source)
            if held is REMOVED:
                held = dict.fromkeys(value_of(source), REMOVED)
            made.update(held if isinstance(held, dict) else {})
        return made

    def pairs(self, node: Mapping, new: dict[str, Any]) -> PairChanges:
        """Return how the pairs of a mapping change."""
        inherited = self.merged(node)
        own = node.own()
        if any(key not in new and key not in own for key in inherited):
            inherited = {}
            kept = [not is_merge(key) and key_of(key) in new for key, _ in node.pairs]
        else:
            kept = [is_merge(key) or key_of(key) in new for key, _ in node.pairs]
        positions = {key_of(key): index for index, (key, _) in enumerate(node.pairs) if not is_merge(key)}
        added: dict[int, dict[str, Any]] = {}
        before = -1
        for key, value in new.items():
            if key in own:
                before = positions[key]
            elif not (key in inherited and is_same(inherited[key], value)):
                added.setdefault(before, {})[key] = value
        changes = PairChanges(kept, inherited, added)
        if not node.is_flow:
            _rename(node, changes)
        return changes


def _rename(node: Mapping, changes: PairChanges) -> None:
    """Write new scalars over the removed pairs whose place they take, so that the comments stay beside them."""
    for before, values in list(changes.added.items()):
        last = before
        for name in list(values):
            pair = node.pairs[last + 1] if last + 1 < len(node.pairs) and not changes.kept[last + 1] else None
            if pair is None or not _is_inline(pair[1]) or is_merge(pair[0]) or isinstance(values[name], dict | list):
                break
            last += 1
            changes.renamed[last] = (name, values.pop(name))
        del changes.added[before]
        if values:
            changes.added[last] = values


def _is_inline(node: YamlNode) -> bool:
    return isinstance(node, Scalar) and node.style not in {"|", ">"} and node.start < node.end


def _in_order(some: list[YamlNode], items: list[YamlNode]) -> bool:
    """Return whether the nodes occur in the order of the items, each once."""
    ids = {id(one) for one in some}
    return [id(one) for one in some] == [id(item) for item in items if id(item) in ids]
