"""Positions: the line and column of a field, and of each character of a text, in the file that it was read from.

In: a document with the path of a field. Out: positions that count from 1, as editors do. Every style of YAML's texts is
understood (plain, quoted, block, folded), and JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import yaml

from dra_driver.base.errors import InputError
from dra_driver.tools.world.documents import STDIN, Document, Step, read_text, shown

_MAX_BYTES = 4 << 20  # the largest file that is read a second time to find a line
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")  # the anchor and the tag in front of a value
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ESCAPES = {"x": 2, "u": 4, "U": 8}  # the hexadecimal digits that follow
_NAMED = {"0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b"}
_NAMED |= {"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", "\n": " "}


@dataclass(frozen=True, slots=True)
class Position:
    """A line and a column of a file, or of an expression that no file has."""

    line: int
    column: int


def place_of_field(document: Document, path: tuple[Step, ...]) -> str:
    """Return file, line and column of a field; if it is not in the file, those of the innermost field around it."""
    position = FilePositions().of_field(document, path)
    return shown(document.origin) + (f":{position.line}:{position.column}" if position else "")


class FilePositions:
    """Finds positions in files, each of which it reads once."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], tuple[str, list[Any]]] = {}

    def of_field(self, document: Document, path: tuple[Step, ...]) -> Position | None:
        """Return where a field begins, or the innermost field around it; None if the file can't be read again."""
        text, roots = self._composed(document)
        if document.number >= len(roots):
            return None
        node, rest = roots[document.number], (*document.path, *path)
        mark = node.start_mark
        while rest:
            found, taken = _next(node, rest)
            if found is None:
                break
            mark, node = found
            rest = rest[taken:]
        return position_in(text, mark.index)

    def of_character(self, document: Document, path: tuple[Step, ...], value: str, offset: int) -> Position | None:
        """Return where character number `offset` of a text is, which is the `value` of the field at this path.

        Return the field's position if an alias or a merge key hides the text, None if the file can't be read again.
        """
        text, roots = self._composed(document)
        node = roots[document.number] if document.number < len(roots) else None
        for step in (*document.path, *path):
            found = _child(node, step)
            node = found[1] if found else None
        if not isinstance(node, yaml.ScalarNode):
            return self.of_field(document, path)
        return position_in(text, ScalarText.of(text, node).index_of(value, offset))

    def _composed(self, document: Document) -> tuple[str, list[Any]]:
        """Return the text of a document's file, and the nodes of its documents; no nodes if it can't be read."""
        key = document.origin, document.text
        if key not in self._files:
            self._files[key] = _composed(document)
        return self._files[key]


@dataclass(frozen=True, slots=True)
class ScalarText:
    """The source of a text value in a file: its style, as YAML's reader names it, and the index where it begins."""

    source: str
    style: str | None
    start: int

    @classmethod
    def of(cls, text: str, node: yaml.ScalarNode) -> ScalarText:
        """Return the source of a scalar without its anchor and tag."""
        start, end = node.start_mark.index, node.end_mark.index
        properties = _PROPERTIES.match(text, start, end)
        start = properties.end() if properties else start
        return cls(text[start:end], node.style, start)

    @property
    def end(self) -> int:
        """The index behind the source."""
        return self.start + len(self.source)

    def index_of(self, value: str, offset: int) -> int:
        """Return the index in the file of character number `offset` of the value."""
        before = sum(not character.isspace() for character in value[:offset])
        visible = (index for index, character in self.characters() if not character.isspace())
        return next(islice(visible, before, None), self.start)

    def text_before(self, index: int) -> str:
        """Return the characters of the value that stand before an index of the file, white space as in the source."""
        return "".join(character for place, character in self.characters() if place < index)

    def characters(self) -> Iterator[tuple[int, str]]:
        """Yield the characters that the source stands for, with their indices in the file."""
        return ((self.start + index, character) for index, character in _characters(self.source, self.style))


def offset_in(expression: str, line: int, column: int) -> int:
    """Return the offset of a position in an expression."""
    return sum(len(row) + 1 for row in expression.split("\n")[: line - 1]) + column - 1


def position_in(text: str, index: int) -> Position:
    """Return the position of a character in a text."""
    return Position(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _composed(document: Document) -> tuple[str, list[Any]]:
    try:
        text = document.text or ("" if document.origin == STDIN else read_text(document.origin))
        if len(text) > _MAX_BYTES:
            return text, []
        return text, compose(text)
    except (InputError, yaml.YAMLError, RecursionError):
        return "", []


def compose(text: str) -> list[Any]:
    """Return the nodes of the documents in a text of YAML or JSON. Raises: yaml.YAMLError, RecursionError."""
    # JSON may have tabs between its values and halves of characters in its escapes, and YAML neither.
    is_json = text.lstrip()[:1] in {"{", "["}
    readable = _HALF.sub(r"\\u0020", text.replace("\t", " ")) if is_json else text
    return list(yaml.compose_all(readable, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _characters(raw: str, style: str | None) -> Iterator[tuple[int, str]]:
    """Yield the characters that a scalar's source stands for, with their indices; folded white space is left as it is.

    White space is where YAML's styles differ. The other characters come in the same order in the source and the value.
    """
    if style in {"|", ">"}:
        first = raw.find("\n") + 1  # behind the line that has the indicators, and perhaps a comment
        yield from enumerate(raw[first:], first)
        return
    index, end = (1, len(raw) - 1) if style in {"'", '"'} else (0, len(raw))
    while index < end:
        character, width = raw[index], 1
        if style == "'" and character == "'":
            width = 2
        elif style == '"' and character == "\\":
            character, width = _escaped(raw, index)
        yield index, character
        index += width


def _escaped(raw: str, index: int) -> tuple[str, int]:
    """Return the character of an escape in double quotes, and the length of the escape."""
    kind = raw[index + 1]
    if kind not in _ESCAPES:
        return _NAMED.get(kind, kind), 2
    width = 2 + _ESCAPES[kind]
    number = int(raw[index + 2 : index + width], 16)
    if 0xD800 <= number < 0xDC00 and raw[index + width : index + width + 2] == "\\u":  # a pair, as JSON writes it
        number = 0x10000 + ((number - 0xD800) << 10) + int(raw[index + width + 2 : index + width + 6], 16) - 0xDC00
        width += 6
    return chr(number), width


def _next(node: Any, path: tuple[Step, ...]) -> tuple[tuple[yaml.Mark, Any] | None, int]:
    """Return the next field or entry on a path, and how many steps lead to it: several if its key contains dots."""
    for taken in range(1, len(path) + 1):
        step = path[0] if taken == 1 else ".".join(map(str, path[:taken]))
        if found := _child(node, step):
            return found, taken
    return None, 0


def _child(node: Any, step: Step) -> tuple[yaml.Mark, Any] | None:
    """Return where a field or entry begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == step:
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark, node.value[step]
    return None
