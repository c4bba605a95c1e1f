"""Replace expressions inside a YAML or JSON file, without changing the rest of its text, comments included.

In: a file's text, and new expressions by document and path. Out: the new text; None if it could not be made so that,
when read, it differs from the old one by exactly these expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.views.objects.documents import Step
from dra_driver.views.objects.texts import load_text

_NEWLINE = "\n"
_PLAIN = re.compile(r"[A-Za-z0-9(/][^\n\t]*[^\s:]")


@dataclass(frozen=True, slots=True)
class ExpressionChange:
    """One expression to replace: document `number` of the file, the path in it, the new text."""

    number: int
    path: tuple[Step, ...]
    expression: str


def with_new_expressions(text: str, origin: str, changes: Sequence[ExpressionChange]) -> str | None:
    """Return the text with the expressions replaced, or None if that can't be done safely."""
    import yaml

    # The caller has already read this text, so its nesting is bounded.
    roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    edits = []
    for one in changes:
        node = _scalar(roots[one.number], one.path)
        if node is None:
            return None
        edits.append((node.start_mark.index, node.end_mark.index, _written(text, node, one.expression)))
    made = text
    for start, end, new in sorted(edits, reverse=True):
        made = made[:start] + new + made[end:]
    return made if _reads_back(text, made, origin, changes) else None


def _scalar(node: Any, path: Sequence[Step]) -> Any:
    """Return the scalar at a path, or None if an alias or a merge key hides it."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(node.value, list) or step >= len(node.value):
                return None
            node = node.value[step]
            continue
        pairs = node.value if isinstance(node.value, list) else []
        node = next((value for key, value in pairs if getattr(key, "value", None) == step), None)
        if node is None:
            return None
    return node if isinstance(node.value, str) else None


def _written(text: str, node: Any, expression: str) -> str:
    """Write an expression in the YAML style of the one it replaces."""
    if node.style in {"|", ">"}:
        start = text.rfind("\n", 0, node.start_mark.index) + 1
        margin = " " * (len(text[start:]) - len(text[start:].lstrip(" ")) + 2)
        first = text.find("\n", node.start_mark.index)
        body = text[first + 1 : node.end_mark.index]
        if (found := re.search(r"^( +)\S", body, re.MULTILINE)) is not None:
            margin = found[1]
        lines = "\n".join(margin + line if line else "" for line in expression.rstrip("\n").split("\n"))
        return f"|{'' if expression.endswith(_NEWLINE) else '-'}\n{lines}\n"
    if node.style == '"':
        return json.dumps(expression, ensure_ascii=False)
    if node.style is None and _PLAIN.fullmatch(expression) and ": " not in expression and " #" not in expression:
        return expression
    if "\n" in expression:
        return json.dumps(expression, ensure_ascii=False)
    return "'" + expression.replace("'", "''") + "'"


def _reads_back(before: str, after: str, origin: str, changes: Sequence[ExpressionChange]) -> bool:
    """Return whether the new text holds the old objects with the new expressions, and no other change."""
    wanted = deepcopy(load_text(before, origin))
    for one in changes:
        holder = wanted[one.number]
        for step in one.path[:-1]:
            holder = holder[step]
        holder[one.path[-1]] = one.expression
    try:
        return load_text(after, origin) == wanted
    except InputError:
        return False
