"""Objects with something else, or nothing, in one place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values inside a value."""
    yield path
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in rows:
        yield from places(inner, (*path, key))


def spoiled(value: Any, path: tuple[Any, ...], by: Any, *, gone: bool) -> Any:
    """Return a value with something else, or nothing, in one place."""
    if not path:
        return by
    made = copy.deepcopy(value)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = by
    return made


def yaml_of(wire: Any) -> str:
    """Return a value as YAML, or as JSON if YAML has no form for it."""
    try:
        return yaml.safe_dump(wire, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError):
        return json.dumps(wire)
