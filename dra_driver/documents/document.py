"""Document: one YAML file as plain values, read strictly.

In: a path. Out: dicts, lists, str, int, bool, None, and the line of each value. Other types that YAML 1.1 gives to
unquoted text (dates, floats, base-60 numbers such as PCI addresses, yes/no) stay text. A field that is given twice is
refused. No YAML tag is ever executed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import yaml

from dra_driver.model.errors import InputError

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml: the same values, ten times as slowly
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

MAX_SIZE = 1 << 20  # bytes
MAX_NESTING = 50  # levels
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
        if depth > MAX_NESTING:
            raise RecursionError(f"nested more than {MAX_NESTING} levels deep")


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
