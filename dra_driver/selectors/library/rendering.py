"""Run-time values as short text for output, close to CEL literals.

In: a value. Out: one line. No verdict depends on it.
"""

from __future__ import annotations

import json
from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.selectors.library.conversions import CONVERSIONS
from dra_driver.selectors.library.lists import is_list
from dra_driver.selectors.values.containers import is_map, list_size, map_items, map_size
from dra_driver.selectors.values.type_names import type_name
from dra_driver.selectors.values.values import CelQuantity, NamedFormat, Optional, TypeValue, Uint, Url

_MAX_ENTRIES = 4
_LONGEST = 60


def render(value: Any) -> str:
    """Format a value in one short line."""
    return _shortened(_render(value, 2))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _render(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is str:
        return json.dumps(value, ensure_ascii=False)
    if kind is Uint:
        return f"{int(value)}u"
    if kind is CelQuantity:
        return str(value.number)
    if kind is Semver or kind is int:
        return str(value)
    if kind is TypeValue or kind is NamedFormat:
        return str(value.name)
    if kind is Url:
        return str(value.text)
    if kind is Optional:
        return f"optional({_render(value.value, depth)})" if value.present else "optional.none()"
    if is_list(value):
        return _list(value, depth)
    if is_map(value):
        return _map(value, depth)
    convert = CONVERSIONS["string"].get((kind,))
    return str(convert(value)) if convert is not None and kind is not bytes else repr(value)


def _list(value: Any, depth: int) -> str:
    count = list_size(value)
    if depth == 0 or type(value) is not list:
        return f"[{count} elements]"
    shown = [_render(element, depth - 1) for element in value[:_MAX_ENTRIES]]
    return f"[{', '.join(shown)}{', …' if count > _MAX_ENTRIES else ''}]"


def _map(value: Any, depth: int) -> str:
    count = map_size(value)
    if depth == 0:
        return f"{{{count} entries}}"
    shown = [f"{_render(key, 0)}: {_render(item, depth - 1)}" for key, item in map_items(value)[:_MAX_ENTRIES]]
    return f"{{{', '.join(shown)}{', …' if count > _MAX_ENTRIES else ''}}}"


def kind_of(value: Any) -> str:
    """Return the name of a value's type."""
    return type_name(value)
