"""New objects placed before the documents that need them.

In: a text with its edits, and objects for some of its documents. Out: the new text. An object is placed before the
comments that belong to its document, but a comment at the head of the file that an empty line follows stays first.
A JSON file can hold one object only; there a List holds all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dra_driver.yamltext.comments import above_comments
from dra_driver.yamltext.edits import Edit, applied
from dra_driver.yamltext.rendering import TextStyle, block


@dataclass(frozen=True, slots=True)
class InsertedObjects:
    """Objects to write before the document that spans `start` to `end`, in that document's formatting."""

    start: int
    end: int
    objects: tuple[dict[str, Any], ...]
    text_style: TextStyle


def placed(text: str, edits: list[Edit], before: list[InsertedObjects], *, is_single: bool) -> str:
    """Return the text with the edits applied and the objects placed."""
    if before[0].text_style.is_json and is_single:
        return _listed(text, edits, before[0])
    made = list(edits)
    for one in before:
        text_style = one.text_style
        at = _place(text, one.start)
        parts = []
        for wire in one.objects:
            written = block(wire, TextStyle(2, text_style.dash, newline=text_style.newline), 0)
            parts.append(f"{written}{text_style.newline}---{text_style.newline}")
        made.append(_edit(text, at, "".join(parts), text_style))
    return applied(text, made)


def _edit(text: str, at: int, written: str, text_style: TextStyle) -> Edit:
    """Return the edit that inserts the objects, also before a document that begins on the line of its own "---"."""
    line = text[at : at + 4]
    if line[:3] != "---":
        return Edit(at, at, -1, written)
    body = written.removesuffix(f"---{text_style.newline}")
    return Edit(at, at, -1, f"---{text_style.newline}{body}" if at else body)


def _place(text: str, start: int) -> int:
    """Return the offset at which a document's first comment begins."""
    return above_comments(text, text.rfind("\n", 0, start) + 1, 0)


def _listed(text: str, edits: list[Edit], one: InsertedObjects) -> str:
    """Put a JSON object and the objects that it needs into a List."""
    text_style = one.text_style
    lead, tail = text[: one.start], text[one.end :]
    body = applied(text, edits)[len(lead) :]
    body = body[: len(body) - len(tail)] if tail else body
    if not text_style.step:
        written = [json.dumps(wire, ensure_ascii=False) for wire in one.objects]
        return f'{lead}{{"apiVersion": "v1", "kind": "List", "items": [{", ".join([*written, body])}]}}{tail}'
    pad = " " * text_style.step
    written = [json.dumps(wire, indent=text_style.step, ensure_ascii=False) for wire in one.objects]
    rows = f",{text_style.newline}".join(_indented(row, pad * 2) for row in [*written, body])
    lines = [
        "{",
        f'{pad}"apiVersion": "v1",',
        f'{pad}"kind": "List",',
        f'{pad}"items": [',
        rows,
        f"{pad}]",
        "}",
    ]
    return lead + text_style.newline.join(lines) + tail


def _indented(text: str, pad: str) -> str:
    return "\n".join(pad + line if line.strip() else line for line in text.split("\n"))
