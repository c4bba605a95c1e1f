"""The plain value of a written node: what Kubernetes would read, with aliases and merge keys resolved.

In: nodes. Out: dicts, lists and scalars, and for each dict and list the node that it came from. Scalars that YAML 1.1
and 1.2 read differently (`on`, `0777`) stay text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.yamltext.written import Alias, Mapping, Scalar, Sequence, YamlNode, is_merge, key_of, merge_sources

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
