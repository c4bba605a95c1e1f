"""The expressions in the text of a file that is being written, and where each of their characters is.

In: a text of YAML or JSON, finished or not; manifests, and values of a chart. Out: a place for each selector. A text
that YAML's reader understands is read by it; in any other, the lines are searched for `expression:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dra_driver.tools.world.documents import Step
from dra_driver.tools.world.positions import ScalarText, compose

_KEY = re.compile(
    r"""^[ \t]*(?:-[ \t]+)*(?:\w+[ \t]*:[ \t]*)?(?P<flow>[{,].*?)?(?P<key>(["']?)expression\3)[ \t]*:[ \t]*"""
)
_QUOTED = {
    '"': re.compile(r'"(?:[^"\\]|\\.)*"?'),
    "'": re.compile(r"'(?:[^']|'')*'?"),
}
_PLAIN = re.compile(r"(?:[^\s#]|\S#|[ \t]+(?![\s#]|$))*")
_NEXT_KEY = re.compile(r"""[ \t]*(?:-[ \t]|["']?[\w./-]+["']?[ \t]*:(?:[ \t]|$))""")
_ENDS_OF_FLOW = "}],\t "


@dataclass(frozen=True, slots=True)
class ExpressionPlace:
    """One expression of a text. `number` and `steps` lead to it; they are None and () in a text that can't be read."""

    expression: str
    scalar: ScalarText
    number: int | None = None
    steps: tuple[Step, ...] = ()

    def holds(self, text: str, index: int) -> bool:
        """Return whether a cursor is in the expression, or behind it with only blanks between them."""
        last = self.scalar.start + len(self.scalar.source.rstrip())
        return self.scalar.start <= index and (index <= last or not text[last:index].strip(" \t"))

    def text_before(self, index: int) -> str:
        """Return the part of the expression that stands before an index of the text."""
        try:
            return self.scalar.text_before(index)
        except (ValueError, IndexError):  # an escape that is not finished
            return self.scalar.source[: index - self.scalar.start]

    def index_of(self, offset: int) -> int:
        """Return the index in the text of a character of the expression."""
        return self.scalar.index_of(self.expression, offset)

    def offset_at(self, index: int) -> int:
        """Return the offset in the expression of the visible character at an index of the text, or of the next one."""
        before = sum(not character.isspace() for character in self.text_before(index))
        visible = [offset for offset, character in enumerate(self.expression) if not character.isspace()]
        return visible[before] if before < len(visible) else len(self.expression)


def expression_places(text: str) -> list[ExpressionPlace]:
    """Return the places of all expressions in a text, in their order."""
    try:
        roots = compose(text)
        return [place for number, root in enumerate(roots) for place in _places_below(text, root, number)]
    except (yaml.YAMLError, RecursionError):
        return list(_searched(text))


def _places_below(text: str, root: Any, number: int) -> Iterator[ExpressionPlace]:
    """Yield the fields `cel.expression` below a node; what an alias repeats is read once."""
    seen: set[int] = set()
    pending: list[tuple[Any, tuple[Step, ...]]] = [(root, ())]
    while pending:
        node, steps = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode) and steps[-2:] == ("cel", "expression"):
            yield ExpressionPlace(node.value, ScalarText.of(text, node), number, steps)
        elif isinstance(node, yaml.MappingNode):
            rows = [(value, (*steps, str(key.value))) for key, value in node.value]
            pending += reversed(rows)
        elif isinstance(node, yaml.SequenceNode):
            pending += reversed([(value, (*steps, index)) for index, value in enumerate(node.value)])


# A text that YAML's reader does not understand, because it is being typed.


def _searched(text: str) -> Iterator[ExpressionPlace]:
    """Yield what follows the keys `expression` of the lines."""
    lines = text.split("\n")
    start = 0
    for number, line in enumerate(lines):
        if found := _KEY.match(line):
            scalar = _scalar(start + found.end(), lines, number, found)
            yield ExpressionPlace(_value(scalar), scalar)
        start += len(line) + 1


def _scalar(start: int, lines: list[str], number: int, found: re.Match[str]) -> ScalarText:
    """Return the source of the value that follows a key."""
    line = lines[number]
    rest = line[found.end() :]
    if rest[:1] in {"|", ">"}:
        return ScalarText("\n".join([rest, *_deeper(lines, number, found.start("key"))]), rest[0], start)
    if rest[:1] in _QUOTED:
        quoted = _QUOTED[rest[0]].match(rest)
        assert quoted is not None  # noqa: S101  (it begins with the quote)
        is_closed = len(quoted[0]) > 1 and quoted[0].endswith(rest[0])
        return ScalarText(quoted[0] if is_closed else f"{quoted[0]}{rest[0]}", rest[0], start)
    plain = _PLAIN.match(rest)
    source = plain[0] if plain else ""
    if found["flow"]:
        return ScalarText(source.rstrip(_ENDS_OF_FLOW), None, start)
    more = []
    for following in _deeper(lines, number, found.start("key")):
        if not following.strip() or _NEXT_KEY.match(following):
            break
        more.append(following)
    return ScalarText("\n".join([source if not more else rest, *more]), None, start)


def _deeper(lines: list[str], number: int, column: int) -> Iterator[str]:
    """Yield the lines behind a line that are empty or begin behind a column."""
    for line in lines[number + 1 :]:
        if line.strip() and len(line) - len(line.lstrip(" ")) <= column:
            return
        yield line


def _value(scalar: ScalarText) -> str:
    """Return the value of a source; where an escape is not finished, the source itself."""
    try:
        return "".join(character for _, character in scalar.characters()).strip()
    except (ValueError, IndexError):
        return scalar.source.strip("\"'")
